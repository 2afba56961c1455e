"""LLM as its users meet it: prompts of every kind, text, stop, stream, infilling, settings."""

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch
from checkpoints import random_checkpoint, talking

from fastdllm import CheckpointError, Generation, InputError
from fastdllm.llm import LLM
from fastdllm.tokenizer import Tokenizer
from fastdllm.tracing import Trace

GOLDEN = Path(__file__).parent / "golden"
TOKENIZER = GOLDEN / "tokenizer"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random LLaDA whose vocabulary is the tokenizer's, with the real special tokens."""
    made = random_checkpoint("llada", 0, vocab=400, width=64, sharpness=8.0)
    return talking(tmp_path_factory.mktemp("llada"), *made)


@pytest.fixture(scope="module")
def llm(folder) -> LLM:
    return LLM.load(folder, device="cpu")


@pytest.fixture(scope="module")
def ids_only() -> LLM:
    return LLM.load(GOLDEN / "ckpt" / "llada_mha", device="cpu")


FIXED = Generation(max_tokens=24, block_size=8, early_stop=False)


def test_text_chat_and_ids_are_prompts(llm) -> None:
    text = llm.generate("Tom has 12 apples.", FIXED)
    ids = llm.generate(llm.tokenizer.encode("Tom has 12 apples."), FIXED)
    tensor = llm.generate(torch.tensor(llm.tokenizer.encode("Tom has 12 apples.")), FIXED)
    assert text.tokens == ids.tokens == tensor.tokens
    messages = [{"role": "user", "content": "Tom has 12 apples."}]
    chat = llm.generate(messages, FIXED)
    assert chat.usage.prompt_tokens == len(llm.tokenizer.encode(llm.tokenizer.chat(messages)))
    assert llm.tokenizer.chat(messages).endswith(
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_many_prompts_as_one_by_one(llm) -> None:
    prompts = ["One", "A much longer prompt, with more words in it.", [5, 6, 7]]
    together = llm.generate(prompts, FIXED)
    for prompt, done in zip(prompts, together, strict=True):
        alone = llm.generate(prompt, FIXED)
        assert (done.tokens, done.text, done.usage.nfe) == (
            alone.tokens,
            alone.text,
            alone.usage.nfe,
        )


def test_usage_counts_steps_and_tokens(llm) -> None:
    done = llm.generate("Count", replace(FIXED, select="full"), trace=True)
    assert done.usage.nfe == done.trace.nfe == 24
    assert done.usage.tokens == len(done.tokens)
    assert done.usage.seconds > 0
    assert done.usage.tokens_per_nfe == done.usage.tokens / 24
    fast = llm.generate("Count", replace(FIXED, select="topk:4"))
    assert fast.usage.nfe == 6


def scripted(tokenizer: Tokenizer, text: str, new: int = 40) -> LLM:
    """A foreign model that writes `text` and then ends, surest at the left."""
    answer = tokenizer.encode(text)
    end = tokenizer.end_ids[0]
    mask = tokenizer.core.token_to_id("<|mdm_mask|>")

    def model(ids):
        logits = torch.zeros(*ids.shape, 400)
        start = ids.shape[1] - new
        for i in range(new):
            token = answer[i] if i < len(answer) else end
            logits[:, start + i, token] = 30.0 - 0.5 * i
        return logits

    return LLM(model, tokenizer, mask_id=mask)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(TOKENIZER)


def test_early_stop_saves_passes_and_cuts_the_text(tokenizer) -> None:
    llm = scripted(tokenizer, "The answer is 42.")
    settings = Generation(max_tokens=40, block_size=8, select="full")
    done = llm.generate("x", settings)
    whole = llm.generate("x", replace(settings, early_stop=False))
    assert done.text == whole.text == "The answer is 42."
    assert (done.finish_reason, whole.finish_reason) == ("stop", "length")
    assert done.usage.nfe == len(done.tokens) + 1
    assert whole.usage.nfe == 40
    assert done.usage.tokens == len(tokenizer.encode("The answer is 42."))


def test_stop_strings(tokenizer) -> None:
    llm = scripted(tokenizer, "First line.\n\nQuestion: another one?")
    settings = Generation(max_tokens=40, block_size=8, select="full", stop="\n\nQuestion")
    done = llm.generate("x", settings)
    assert done.text == "First line."
    assert done.finish_reason == "stop"
    assert done.usage.nfe < len(tokenizer.encode("First line.\n\nQuestion: another one?"))
    assert "".join(llm.stream("x", settings)) == "First line."


def test_a_stop_string_in_the_last_step(tokenizer) -> None:
    llm = scripted(tokenizer, "One. Two. Three.")
    settings = Generation(max_tokens=40, block_size=40, select="topk:40", stop=" Two")
    done = llm.generate("x", settings)
    assert (done.text, done.finish_reason, done.usage.nfe) == ("One.", "stop", 1)
    assert tokenizer.decode(done.tokens) == "One."
    assert done.usage.tokens == len(tokenizer.encode("One."))


def test_stream_only_ever_adds(llm, tokenizer) -> None:
    for model, prompt in ((llm, "Tom"), (scripted(tokenizer, "Größe: 5 € → 7 €"), "x")):
        settings = Generation(max_tokens=40, block_size=8)
        parts = list(model.stream(prompt, settings))
        assert "".join(parts) == model.generate(prompt, settings).text
        assert all(parts)
    assert len(parts) > 1


def test_infilling_keeps_what_is_fixed(llm) -> None:
    text = "def f(x):\n    [MASK:12]\n    return [MASK:3] + y"
    for cache in ("none", "prefix", "dual"):
        done = llm.infill(text, Generation(block_size=8, cache=cache), trace=True)
        assert len(done.tokens) == 15
        assert done.usage.tokens == 15
        canvas = list(done.trace.canvas)
        holes = {p for step in done.trace.steps for p in step.positions}
        assert len(holes) == 15
        assert all(canvas[p] == llm.mask_id for p in holes)
        assert done.text.startswith("def f(x):\n")
        assert done.text.endswith(" + y")
        assert "mdm_mask" not in done.text


def test_a_mask_in_the_prompt_is_evidence(llm) -> None:
    prompt = [5, llm.mask_id, 6]
    done = llm.generate(prompt, FIXED, trace=True)
    assert done.trace.canvas[:3] == (5, llm.mask_id, 6)
    assert min(p for step in done.trace.steps for p in step.positions) == 3
    assert "mdm_mask" not in llm.generate("a<|mdm_mask|>b", FIXED).text


def test_the_same_seed_draws_the_same_text(llm) -> None:
    settings = replace(FIXED, temperature=1.0, seed=3)
    once = llm.generate("Tom", settings)
    batch = llm.generate(["A longer neighbour than that", "Tom", "x"], settings)
    assert batch[1].text == once.text
    others = {llm.generate("Tom", replace(settings, seed=s)).text for s in range(4, 9)}
    assert len(others) > 1
    narrow = llm.generate("Tom", replace(settings, top_k=1))
    greedy = llm.generate("Tom", FIXED)
    assert narrow.tokens == greedy.tokens


def test_a_last_block_may_be_shorter(llm) -> None:
    for new in (1, 7, 8, 9, 30):
        done = llm.generate("Tom", Generation(max_tokens=new, block_size=8, early_stop=False))
        assert done.finish_reason == "length"
        assert len(llm.row("Tom", Generation(max_tokens=new)).ids) == 1 + new + len(
            llm.tokenizer.encode("Tom")[1:]
        )


def test_steps_is_the_primitive(llm) -> None:
    steps = list(llm.steps(["Tom", "Ann has 3"], FIXED))
    assert {step.row for step in steps} == {0, 1}
    done = llm.generate(["Tom", "Ann has 3"], FIXED)
    assert [sum(s.row == i for s in steps) for i in (0, 1)] == [d.usage.nfe for d in done]
    with pytest.raises(FrozenInstanceError):
        steps[0].row = 5


def test_trace_there_and_back(llm, tmp_path) -> None:
    kept = llm.generate("Tom", FIXED, trace=True).trace
    kept.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == kept
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:3], lines[3][:20]]))
    with pytest.raises(InputError, match="line 4"):
        Trace.load(tmp_path / "bad.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        Trace.load(tmp_path / "none.jsonl")


def test_a_folder_without_a_tokenizer_takes_ids(ids_only) -> None:
    done = ids_only.generate([1, 2, 3], FIXED)
    assert done.text == ""
    assert len(done.tokens) == 24
    with pytest.raises(InputError, match=r"no tokenizer.*give token ids"):
        ids_only.generate("text", FIXED)


# --- Settings and bad input ----------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; wanted a whole number of at least 1"),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": 2.5}, "block_size is 2.5"),
        ({"select": "frechett"}, "did you mean 'frechet'"),
        ({"cache": "duel"}, "unknown cache 'duel'; did you mean 'dual'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"stop": ("",)}, "stop string is empty"),
        ({"seed": 2**70}, "seed is"),
        ({"select": 5}, "select is 5; wanted a rule"),
    ],
)
def test_bad_settings(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Generation(**change)


def test_bad_prompts(llm) -> None:
    with pytest.raises(InputError, match="the prompt is empty"):
        llm.generate("", FIXED)
    with pytest.raises(InputError, match=r"canvas of .* more than the model's context of 256"):
        llm.generate("Tom", Generation(max_tokens=300))
    with pytest.raises(InputError, match="token id 400 is outside the vocabulary"):
        llm.generate([1, 400], FIXED)
    with pytest.raises(InputError, match=r"\[MASK:24\]"):
        llm.infill("no hole", FIXED)
    plain = LLM(llm.model, Tokenizer(llm.tokenizer.core, {}, None))
    with pytest.raises(InputError, match="no chat template"):
        plain.generate([{"role": "user", "content": "x"}], FIXED)


@pytest.mark.usefixtures("unchecked")
def test_prompts_of_other_kinds(ids_only) -> None:
    import numpy as np

    expected = ids_only.generate([3, 4], FIXED).tokens
    for prompt in ((3, 4), np.array([3, 4]), [np.int64(3), np.int64(4)], torch.tensor([3, 4])):
        assert ids_only.generate(prompt, FIXED).tokens == expected
    for many in ([[3, 4], [3, 4]], torch.tensor([[3, 4], [3, 4]]), [torch.tensor([3, 4])]):
        assert {done.tokens for done in ids_only.generate(many, FIXED)} == {expected}
    for bad in (None, 5, {"a": 1}, torch.tensor([1.7]), b"ab", [[1.5]], torch.zeros(1, 1, 1)):
        with pytest.raises(InputError, match="wanted text, a list of token ids"):
            ids_only.generate(bad, FIXED)
    with pytest.raises(InputError, match="canvas of 100000000000"):
        ids_only.generate([3], Generation(max_tokens=99_999_999_999))


def test_a_model_must_have_a_mask(ids_only) -> None:
    with pytest.raises(CheckpointError, match="give mask_id="):
        LLM(lambda ids: ids)


def test_chat_templates_are_sandboxed(llm) -> None:
    keys = Tokenizer(llm.tokenizer.core, {}, "{{ messages[0] | tojson }}{{ 1 / messages[1] }}")
    with pytest.raises(InputError, match="refused"):
        keys.chat([{"role": "user", "content": "<x>"}, {}])
    order = Tokenizer(llm.tokenizer.core, {}, "{{ messages[0] | tojson }}")
    said = order.chat([{"role": "user", "content": "<é>"}])
    assert said == '{"role": "user", "content": "<é>"}'
    evil = Tokenizer(llm.tokenizer.core, {}, "{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InputError, match="refused"):
        evil.chat([{"role": "user", "content": "x"}])


def test_vocab_and_merges_without_tokenizer_json(tmp_path) -> None:
    """Dream's form: the same ids as the tokenizer it was taken from."""
    from tokenizers import Tokenizer as Core
    from tokenizers import decoders, models, pre_tokenizers, trainers

    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    sentences = ["Tom has 12 apples and 35 pears.", "def f(x):\n    return x + 1", "Größe 5 €"] * 9
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(sentences, trainer)
    core.model.save(str(tmp_path))
    size = core.get_vocab_size()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
    added = {str(size + i): {"content": n, "special": True} for i, n in enumerate(names)}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"added_tokens_decoder": added, "mask_token": "<|mask|>", "eos_token": "<|endoftext|>"}
        )
    )
    loaded = Tokenizer.load(tmp_path)
    assert loaded.mask_id == size + 3
    assert loaded.end_ids == (size, size + 2)
    for text in ("Tom has 12 apples", "x = 35\n\n  y", "Größe → 5 €", "<|im_start|>user"):
        ids = loaded.encode(text)
        assert loaded.decode(ids, special=True) == text
        assert all(len(loaded.piece(i)) == 1 for i in ids if loaded.piece(i).isdigit())
    assert loaded.encode("<|im_end|>") == [size + 2]
    assert Tokenizer.load(tmp_path / "nothing") is None
