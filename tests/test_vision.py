"""LLaDA-V against recordings of its public code: pixels, features, logits, generations."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import zlib
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy
import pytest
import torch
from checkpoints import random_checkpoint, talking
from PIL import Image
from safetensors.torch import load_file, save_file

from fastdllm import LLM, Generation, InputError
from fastdllm.cache import Fresh, Policy, Range
from fastdllm.denoise import CachedReader, Picture, Row, denoise
from fastdllm.eval.task import generated
from fastdllm.models.loading import load_model
from fastdllm.models.transformer import Transformer
from fastdllm.selection import Factor, Frechet, Full, Selector, Threshold, TopK
from fastdllm.training import objective, recipe
from fastdllm.training.data import stack
from fastdllm.training.train import start
from fastdllm.vision.images import open_image
from fastdllm.vision.tiles import best_canvas, count_tokens, cut
from fastdllm.viz.html import trace_page

GOLDEN = Path(__file__).parent / "golden" / "llada_v"
RECORDED = json.loads((GOLDEN / "cases.json").read_text())
INFO = json.loads((GOLDEN / "info.json").read_text())
CASES = [case for case in RECORDED["cases"] if case["robust"]]
REAL = [(384 * i, 384 * j) for i in range(1, 7) for j in range(1, 7)]
MASK, FORBIDDEN = 384, (129, 128, 394, 395)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return load_model(GOLDEN / "tiny_a", device="cpu")


def picture(name: str) -> Image.Image:
    return open_image(GOLDEN / "images" / f"{name}.png")


@cache
def look(model: Transformer, name: str) -> torch.Tensor:
    assert model.eyes is not None
    return model.eyes.look(picture(name))


# --- Seeing ------------------------------------------------------------------------------------


def test_the_parameters_are_counted(model: Transformer) -> None:
    assert model.config.parameters == sum(p.numel() for p in model.parameters())


def test_pixels_and_features(model: Transformer) -> None:
    pixels = load_file(GOLDEN / "pixels.safetensors")
    features = load_file(GOLDEN / "features.safetensors")
    assert model.eyes is not None
    for name, wanted in pixels.items():
        tiles = cut(picture(name), model.eyes.config.canvases, model.eyes.config.side)
        assert (tiles - wanted).abs().max() <= 1e-6
        if f"{name}.vision_out" in features:
            with torch.inference_mode():
                seen = model.eyes.features(tiles)
            kept = features[f"{name}.vision_out"]
            assert (seen[: len(kept)] - kept).abs().max() <= 2e-5
        merged = model.eyes.look(picture(name))
        assert merged.shape == features[f"{name}.image_seq"].shape
        assert (merged - features[f"{name}.image_seq"]).abs().max() <= 2e-5


def test_real_sizes() -> None:
    for row in json.loads((GOLDEN / "real_geometry.json").read_text())["rows"]:
        size = tuple(row["size_wh"])
        assert best_canvas(size, REAL) == tuple(row["best_resolution_wh"])
        assert count_tokens(size, REAL, 384, 27, 4) == row["image_tokens"]


def test_another_grid() -> None:
    """A checkpoint with tiles of 28 pixels, 4 x 4 features each, shrunk to nine tiles' worth."""
    choices = [(28 * i, 28 * j) for i in range(1, 7) for j in range(1, 7)]
    for image in INFO["tiny_b"]["images"].values():
        size = tuple(image["size_wh"])
        assert best_canvas(size, choices) == tuple(image["best_resolution_wh"])
        assert count_tokens(size, choices, 28, 4, 9) == image["image_tokens"]


@pytest.mark.slow
def test_real_pixels() -> None:
    for row in json.loads((GOLDEN / "real_geometry.json").read_text())["rows"]:
        if "noise_seed" in row:
            w, h = row["size_wh"]
            noise = numpy.random.RandomState(row["noise_seed"]).randint(0, 256, (h, w, 3), "uint8")
            pixels = cut(Image.fromarray(noise), REAL, 384)
            assert len(pixels) == row["tiles"]
            found = hashlib.sha256(pixels.contiguous().numpy().tobytes()).hexdigest()
            assert row["pixels_sha256"] in (found, None)  # of some only the tiles were recorded


# --- Reading -----------------------------------------------------------------------------------


def prompt(model: Transformer, image: str, name: str) -> tuple[list[int], Picture]:
    """The recorded ids, with the picture where -200 stands."""
    ids, seen = INFO["prompts"][name], look(model, image)
    at = ids.index(-200)
    whole = ids[:at] + [0] * len(seen) + ids[at + 1 :]
    return whole, Picture(torch.arange(at, at + len(seen)), seen)


def test_logits(model: Transformer) -> None:
    recorded = load_file(GOLDEN / "logits.safetensors")
    names = [key.removesuffix(".gen32") for key in recorded if key.endswith(".gen32")]
    assert len(names) == 6
    for key in names:
        ids, seen = prompt(model, *key.rsplit(".", 1))
        canvas = torch.tensor([ids + [MASK] * 32])
        with torch.inference_mode():
            x = model.embed(canvas)
            x[0, seen.at] = seen.embedding
            positions = torch.arange(canvas.shape[1])[None]
            logits = model.head(model.blocks_over(x, positions, Fresh(None)))[0]
        assert (logits[-32:] - recorded[f"{key}.gen32"]).abs().max() <= 5e-4
        assert logits.argmax(dim=-1).tolist() == recorded[f"{key}.argmax"].tolist()


def rule(case: dict) -> Selector:
    if "frechet_margin" in case:
        return Frechet(case["frechet_margin"])
    if case["method"] == "nohook_threshold":
        return Threshold(case["threshold"])
    if "factor" in case or "threshold" in case:  # the same thing in the hook
        return Factor(case.get("factor") or case["threshold"])
    return TopK(case["gen_length"] // case["steps"]) if "half" in case["method"] else Full()


# Every eighth in each run, all of them in the slow one.
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case["method"], marks=[pytest.mark.slow] if i % 8 else [])
        for i, case in enumerate(CASES)
    ],
)
def test_golden_generation(model: Transformer, case: dict) -> None:
    ids, seen = prompt(model, case["img"], case["prompt"])
    table = case.get("tokenizer_table", {})
    suffix = table.get(case.get("generation_suffix"), [])
    size, start = case["gen_length"], len(ids)
    canvas = torch.tensor(ids + [MASK] * size + suffix)
    masked = torch.zeros(len(canvas), dtype=torch.bool)
    masked[start : start + size] = True
    cuts = tuple(tuple(table[name]) for name in case.get("stopping_criteria", []))
    row = Row(0, canvas, masked, rule(case), case["block_length"], cuts=cuts, picture=seen)
    interval = case.get("prefix_refresh_interval")
    reader = CachedReader(model, f"prefix:{interval}" if interval else "none")
    steps = list(denoise(reader, [row], FORBIDDEN))
    made = row.ids[start : row.end].tolist() + suffix
    assert made == case["ids"]
    assert len(steps) == case["nfe"]
    if "commits" in case:
        found = [sorted(p - start for p in step.commits) for step in steps]
        assert found == case["commits"]
        whole = [step for step in steps if len(step.window) == len(canvas)]
        assert len(whole) == case["nfe_full"]


# --- The library -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """The checkpoint with its tokenizer, as a folder a user would have."""
    where = tmp_path_factory.mktemp("llada_v")
    for file in [*(GOLDEN / "tiny_a").iterdir(), *(GOLDEN / "tokenizer").iterdir()]:
        shutil.copy(file, where)
    return LLM.load(where, device="cpu")


def test_the_vocabulary_is_the_tokenizers(llm: LLM) -> None:
    assert llm.vocab == len(llm.tokenizer) == llm.model.head.weight.shape[0] == 397
    assert llm.mask_id == MASK
    assert set(llm.forbidden) == {MASK, *FORBIDDEN}
    assert llm.end_ids == (396,)


def test_a_prompt_is_the_recorded_one(llm: LLM) -> None:
    name = "img0_landscape_97x61"
    settings = Generation(8, 8, think=True)
    row = llm.row("What is x? (A) 1 (B) 2", settings, images=[picture(name)])
    wanted, seen = prompt(llm.model, name, "p1_template")
    assert row.ids[:-8].tolist() == wanted
    assert row.picture.at.tolist() == seen.at.tolist()
    merged = llm.model.embed(row.ids[:-8])
    merged[row.picture.at] = row.picture.embedding
    recorded = load_file(GOLDEN / "features.safetensors")[f"{name}.p1_template.merged"]
    assert (merged - recorded).abs().max() <= 2e-5


def test_the_newline_can_be_kept(llm: LLM) -> None:
    image = picture("img3_small_40x44")
    dropped = llm.row("Hi", Generation(8, 8), images=[image])
    llm.drop_newline = False
    try:
        kept = llm.row("Hi", Generation(8, 8), images=[image])
    finally:
        llm.drop_newline = True
    assert len(kept.ids) == len(dropped.ids) + 1
    after = int(kept.picture.at[-1]) + 1
    assert llm.tokenizer.piece(int(kept.ids[after])) == "\n"
    assert kept.ids[after + 1 :].tolist() == dropped.ids[after:].tolist()


def test_pictures_by_path_bytes_and_pil_in_batches_and_alone(llm: LLM) -> None:
    path = GOLDEN / "images" / "img3_small_40x44.png"
    wide = GOLDEN / "images" / "img5_exact_88x44.png"
    settings = Generation(16, 8, "frechet:0.25", "prefix:4")
    alone = llm.generate("How many?", settings, images=[path])
    assert llm.generate("How many?", settings, images=[path.read_bytes()]).tokens == alone.tokens
    both = llm.generate(
        ["How many?", "How many?"], settings, images=[[open_image(path)], [wide]], trace=True
    )
    assert both[0].tokens == alone.tokens
    each = llm.generate(["How many?", "How many?"], settings, images=[str(path), wide])
    assert [d.tokens for d in each] == [d.tokens for d in both]
    assert both[1].usage.prompt_tokens > alone.usage.prompt_tokens
    assert len(both[0].trace.steps) == both[0].usage.nfe


def test_several_pictures_and_turns(llm: LLM) -> None:
    image = picture("img3_small_40x44")
    two = llm.row("Same?", Generation(8, 8), images=[image, image])
    assert len(two.picture.at) == 2 * 36  # a glance each, without newlines
    turns = [
        {"role": "user", "content": "<image>\nWhat is it?"},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "And <image>?"},
    ]
    row = llm.row(turns, Generation(8, 8), images=[image, image])
    gaps = (row.picture.at[1:] - row.picture.at[:-1] > 1).sum()
    assert gaps == 1


@pytest.mark.parametrize("count", [1, 3])
def test_marks_and_images_must_agree(llm: LLM, count: int) -> None:
    with pytest.raises(InputError, match=f"2 <image> marks for {count} images"):
        llm.row(
            "<image> or <image>?", Generation(8, 8), images=[picture("img3_small_40x44")] * count
        )


def test_a_mark_without_a_picture_is_named(llm: LLM) -> None:
    with pytest.raises(InputError, match="1 <image> marks for 0 images"):
        llm.generate("<image>\nHow many?", Generation(8, 8))


def test_steps_see_pictures(llm: LLM) -> None:
    image, settings = picture("img3_small_40x44"), Generation(8, 8, "topk:2")
    steps = list(llm.steps("What is it?", settings, images=[image]))
    traced = llm.generate("What is it?", settings, images=[image], trace=True).trace.steps
    assert [s.tokens for s in steps] == [s.tokens for s in traced]


def test_a_text_model_is_no_eye(tmp_path: Path) -> None:
    blind = LLM.load(talking(tmp_path, *random_checkpoint("llada", 0, vocab=400)), device="cpu")
    with pytest.raises(InputError, match="reads text only"):
        blind.generate("Hi", Generation(8, 8), images=[GOLDEN / "images" / "img3_small_40x44.png"])


def command(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastdllm", *arguments], input=text, capture_output=True, text=True
    )


def test_the_command_looks_at_a_picture(llm: LLM) -> None:
    path = str(GOLDEN / "images" / "img3_small_40x44.png")
    common = ["--model", llm.name, "--max-tokens", "16", "--block-size", "8", "--cache", "prefix:4"]
    done = command("generate", "How many?", "--image", path, "--think", *common)
    assert done.returncode == 0, done.stderr
    settings = Generation(16, 8, "frechet:0.25", "prefix:4", think=True)
    wanted = llm.generate("How many?", settings, images=path)
    assert done.stdout.rstrip("\n") == wanted.text.rstrip("\n")
    bad = command("generate", "How many?", "--image", str(Path(__file__)), *common)
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1
    assert "not a picture" in bad.stderr


def test_a_chat_keeps_its_pictures(llm: LLM) -> None:
    path = GOLDEN / "images" / "img3_small_40x44.png"
    lines = f"/image {path}\nWhat is it?\nAnd now?\n/image nothing.png\n/quit\n"
    common = ["--model", llm.name, "--max-tokens", "8", "--block-size", "8"]
    done = command("chat", *common, text=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passes") == 2
    assert "there is no file nothing.png" in done.stdout


# --- Bad and odd pictures ----------------------------------------------------------------------


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    raw = BytesIO()
    image.save(raw, kind, **options)
    return raw.getvalue()


def test_odd_pictures_are_seen_as_a_person_sees_them() -> None:
    red = Image.new("RGB", (6, 4), "red")
    assert open_image(encoded(red.convert("CMYK"), "JPEG")).getpixel((2, 2))[0] > 240
    deep = Image.fromarray(numpy.full((4, 6), 32768, dtype=numpy.uint16))
    assert open_image(encoded(deep)).getpixel((0, 0)) == (127, 127, 127)
    bright = Image.fromarray(numpy.full((4, 6), 0.5, dtype=numpy.float32))
    assert open_image(bright).getpixel((0, 0)) == (127, 127, 127)
    clear = Image.new("RGBA", (3, 3), (255, 0, 0, 0))
    assert open_image(encoded(clear)).getpixel((1, 1)) == (255, 255, 255)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    assert open_image(encoded(red, "JPEG", exif=exif)).size == (4, 6)
    moving = encoded(red, "GIF", save_all=True, append_images=[Image.new("RGB", (6, 4), "blue")])
    assert open_image(moving).getpixel((0, 0))[0] > 200
    assert open_image(encoded(Image.new("1", (2, 2), 1))).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("size", [(1, 1), (20_000, 3), (3, 20_000)])
def test_any_shape_is_laid_out(llm: LLM, size: tuple[int, int]) -> None:
    seen = llm.eyes.look(Image.new("RGB", size, "green"))
    assert torch.isfinite(seen).all()
    c = llm.eyes.config
    assert len(seen) == count_tokens(size, c.canvases, c.side, c.cells, c.most)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"", "not a picture"),
        (b"\x89PNG\r\n\x1a\n but no more", "not a picture"),
        (encoded(Image.effect_noise((40, 40), 50))[:-400], "cannot be read"),
        (Path("/no/such.png"), "there is no file"),
        (Path(__file__).parent, "is a folder"),
        (Path(__file__), "not a picture"),
    ],
)
def test_bad_pictures_are_one_line(source: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        open_image(source)


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_a_bomb_is_not_unpacked(side: int) -> None:
    """Its header says so; nothing near that is in the file."""
    raw = bytearray(encoded(Image.new("1", (8, 8))))
    raw[16:24] = side.to_bytes(4, "big") * 2
    raw[29:33] = zlib.crc32(bytes(raw[12:29])).to_bytes(4, "big")
    with pytest.raises(InputError, match="too many pixels"):
        open_image(bytes(raw))


def test_a_stream_and_a_trace_with_a_picture(llm: LLM) -> None:
    image, settings = picture("img3_small_40x44"), Generation(16, 8)
    done = llm.generate("How many?", settings, images=[image], trace=True)
    assert "".join(llm.stream("How many?", settings, images=image)) == done.text
    shown = [i for i, token in enumerate(done.trace.canvas) if token == -1]
    assert shown == llm.row("How many?", settings, images=[image]).picture.at.tolist()
    assert done.trace.pieces[-1] == "▦"
    assert trace_page(done.trace).count("▦") == 1  # once in the table of pieces


def _variant(where: Path, kv_heads: int, spread: bool) -> LLM:
    """The checkpoint with the first heads' keys and values alone, or those repeated for all."""
    for file in [*(GOLDEN / "tiny_a").iterdir(), *(GOLDEN / "tokenizer").iterdir()]:
        shutil.copy(file, where)
    config = json.loads((where / "config.json").read_text())
    heads = config["num_attention_heads"]
    size = config["hidden_size"] // heads
    state = load_file(where / "model.safetensors")
    for name, weight in state.items():
        if "k_proj" in name or "v_proj" in name:
            if "vision" in name:
                continue
            few = weight.unflatten(0, (heads, size))[:kv_heads]
            every = few.repeat_interleave(heads // kv_heads, dim=0) if spread else few
            state[name] = every.flatten(0, 1).contiguous()
    config["num_key_value_heads"] = heads if spread else kv_heads
    (where / "config.json").write_text(json.dumps(config))
    save_file(state, where / "model.safetensors", {"format": "pt"})
    return LLM.load(where, device="cpu")


def test_shared_heads_are_the_same_heads_repeated(tmp_path: Path) -> None:
    image, settings = picture("img5_exact_88x44"), Generation(24, 8, "frechet:0.25", "dual")
    found = []
    for name, spread in (("shared", False), ("spread", True)):
        (tmp_path / name).mkdir()
        llm = _variant(tmp_path / name, 1, spread)
        found.append(llm.generate("How many?", settings, images=[image], trace=True).trace)
    shared, spread = found
    assert [s.commits for s in shared.steps] == [s.commits for s in spread.steps]
    for one, other in zip(shared.steps, spread.steps, strict=True):
        assert one.doubts == pytest.approx(other.doubts, abs=1e-4)


HALF = """
import json, sys
from fastdllm import LLM, Generation
from fastdllm.vision.images import open_image
llm = LLM.load(sys.argv[1], device="cpu", dtype="bfloat16")
settings = Generation(8, 8, "full")
seen = llm.generate("How many?", settings, images=[open_image(sys.argv[2])], trace=True)
step = next(iter(seen.trace.steps))
print(json.dumps([str(llm.model.embed.weight.dtype), list(step.positions), list(step.doubts)]))
"""


def test_in_bfloat16_it_says_nearly_the_same(llm: LLM) -> None:
    """In a process of its own: on some processors torch dies of an illegal instruction."""
    image = GOLDEN / "images" / "img3_small_40x44.png"
    command = [sys.executable, "-c", HALF, str(llm.name), str(image)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        pytest.skip("torch has no products in bfloat16 on this processor: illegal instruction")
    assert done.returncode == 0, done.stderr
    dtype, positions, doubts = json.loads(done.stdout)
    assert dtype == "torch.bfloat16"
    whole = llm.generate(
        "How many?", Generation(8, 8, "full"), images=[open_image(image)], trace=True
    )
    first = next(iter(whole.trace.steps))
    assert list(first.positions) == positions
    assert first.doubts == pytest.approx(doubts, abs=0.1)


# --- Training ----------------------------------------------------------------------------------


def test_training_reads_a_picture_as_decoding_does(tmp_path: Path) -> None:
    """The two ways in give the same logits, and gradients reach every part of the eyes."""
    chosen = recipe.choose("tiny-llada-v", init="", tasks=[], data=None, values=[
        "graft=", "batch=2", "layers=2", "width=32", "mlp=32", "heads=2", "kv_heads=2",
    ])  # fmt: skip
    trainer = start(chosen, tmp_path, device=torch.device("cpu"))
    examples = trainer.data.at(0)
    ids, maskable = stack(examples, trainer.end_id)
    noisy = torch.where(maskable, trainer.tokenizer.mask_id, ids)
    seen = [(e.picture, e.at) for e in examples]
    logits = objective.read(trainer.model, noisy, maskable, seen)
    rows = []
    for i, example in enumerate(examples):
        one = trainer.model.eyes.embed([example.picture])[0].detach()
        rows.append(
            Row(i, noisy[i], maskable[i], Full(), 8, picture=Picture(torch.tensor(example.at), one))
        )
    reader = CachedReader(trainer.model, "none")
    spots = [row.masked.nonzero()[:, 0] for row in rows]
    again = reader.read(rows, reader.windows(rows), spots)
    assert (logits - again).abs().max() < 1e-4
    logits.square().mean().backward()
    for name, parameter in trainer.model.named_parameters():
        unread = "post_layernorm" in name
        assert (parameter.grad is None or not parameter.grad.any()) == unread, name


def test_text_as_it_stands_is_left_as_it_stands(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Plain text")
    assert llm.row("Plain text", Generation(8, 8)).ids[:-8].tolist() == ids
    with pytest.raises(InputError, match="prompt is empty"):
        llm.row([], Generation(8, 8))
    with pytest.raises(InputError, match="content"):
        llm.row([{"role": "user", "content": [1]}], Generation(8, 8))


def test_a_very_long_picture_is_glanced_at(llm: LLM) -> None:
    long = Image.new("RGB", (60_000, 3), "green")
    assert [len(seen) for seen in llm.eyes.glance([long, long])] == [36, 36]


def test_a_checkpoint_that_sees_is_trained_on(llm: LLM, tmp_path: Path) -> None:
    chosen = recipe.choose("", init=llm.name, tasks=["shapes"], data=None, values=[
        "steps=2", "batch=2", "canvas=64", "family=llava_llada",
    ])  # fmt: skip
    trainer = start(chosen, tmp_path, device=torch.device("cpu"))
    trainer.train_step()
    trainer.save()
    assert LLM.load(tmp_path, device="cpu").mask_id == MASK


def test_a_trained_model_that_sees_is_a_checkpoint(tmp_path: Path) -> None:
    chosen = recipe.choose("tiny-llada-v", init="", tasks=[], data=None, values=[
        "graft=", "steps=2", "batch=2", "layers=1", "width=32", "mlp=32", "heads=2", "kv_heads=2",
    ])  # fmt: skip
    trainer = start(chosen, tmp_path, device=torch.device("cpu"))
    trainer.train_step()
    trainer.save()
    llm = LLM.load(tmp_path, device="cpu")
    assert llm.model.config.eyes == trainer.model.config.eyes
    problem = generated("shapes").held_out(1)[0]
    done = llm.generate(problem.prompt, Generation(8, 8), images=problem.images)
    assert done.usage.nfe >= 1
    assert llm.tokenizer.mask_id == llm.mask_id


# --- Caches ------------------------------------------------------------------------------------


def test_a_policy_refreshes_after_so_many_steps() -> None:
    policy, block = Policy.parse("dual:3"), Range(4, 8)
    assert [policy.window(block, 20, age) == Range(0, 20) for age in (None, 1, 2, 3)] == [
        True,
        False,
        False,
        True,
    ]
    for bad in ("none:3", "prefix:0", "prefix:x", "prefix:", "prefx:3"):
        with pytest.raises(InputError, match="unknown cache"):
            Policy.parse(bad)
