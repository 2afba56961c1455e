"""From a folder to a model: what is accepted, what is refused, and in which words."""

import json

import pytest
import torch
from checkpoints import random_checkpoint, save
from safetensors.torch import save_file

from fastdllm import CheckpointError, Generation, InputError
from fastdllm.llm import LLM
from fastdllm.models.loading import find_folder, load_config, load_model


@pytest.fixture
def checkpoint():
    return random_checkpoint("llada", 0)


def test_sharded_as_one_file(tmp_path, checkpoint) -> None:
    config, state = checkpoint
    whole = load_model(save(tmp_path / "one", config, state), device="cpu")
    folder = tmp_path / "two"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(state)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, mine in shards.items():
        save_file({name: state[name].contiguous() for name in mine}, folder / file)
    index = {"weight_map": {name: file for file, mine in shards.items() for name in mine}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = load_model(folder, device="cpu")
    for (name, a), (_, b) in zip(
        whole.state_dict().items(), sharded.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names b.safetensors, not there"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("family", ["llada", "Dream", "llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_without_loading(tmp_path, family, tied) -> None:
    config, state = random_checkpoint(family, 0, tied=tied, kv_heads=2)
    folder = save(tmp_path, config, state)
    assert load_config(folder).parameters == sum(t.numel() for t in state.values())
    model = load_model(folder, device="cpu")
    assert (model.head.weight is model.embed.weight) == tied


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(tmp_path, checkpoint, dtype) -> None:
    seen = []
    folder = save(tmp_path, *checkpoint)
    model = load_model(folder, dtype=dtype, device="cpu", progress=lambda *at: seen.append(at))
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    assert not any(p.requires_grad for p in model.parameters())
    assert seen[-1] == (len(checkpoint[1]), len(checkpoint[1]))


def test_every_misfit_is_listed_at_once(tmp_path, checkpoint) -> None:
    config, state = checkpoint
    del state["model.transformer.ln_f.weight"]
    state["model.extra.weight"] = torch.zeros(3)
    state["model.transformer.blocks.0.q_proj.weight"] = torch.zeros(5, 32)
    with pytest.raises(CheckpointError) as error:
        load_model(save(tmp_path, config, state), device="cpu")
    text = str(error.value)
    assert "1 missing: model.transformer.ln_f.weight" in text
    assert "1 unexpected: model.extra.weight" in text
    assert "q_proj.weight [5, 32] for [32, 32]" in text


def test_weights_must_be_floats(tmp_path, checkpoint) -> None:
    config, state = checkpoint
    name = "model.transformer.blocks.0.up_proj.weight"
    state[name] = torch.zeros_like(state[name], dtype=torch.int8)
    with pytest.raises(CheckpointError, match=f"1 not of a float dtype: {name}"):
        load_model(save(tmp_path, config, state), device="cpu")


def test_converted_models_by_their_own_names(tmp_path) -> None:
    config, state = random_checkpoint("qwen3", 0)
    del config["mask_token_id"]
    config |= {"model_type": "a2d-qwen3", "rope_parameters": {"rope_theta": 1e6}}
    folder = save(tmp_path, config, state)
    with pytest.raises(CheckpointError, match="give mask_id="):
        LLM.load(folder, device="cpu")
    llm = LLM.load(folder, device="cpu", mask_id=40, shift=True)
    assert (llm.mask_id, llm.shift, llm.model.config.shift) == (40, True, True)
    assert llm.generate([1, 2], Generation(max_tokens=8)).usage.nfe > 0


def test_a_truncated_file(tmp_path, checkpoint) -> None:
    folder = save(tmp_path, *checkpoint)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        load_model(folder, device="cpu")
    file.write_bytes(b"short")
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": None}, "layers is None"),
        ({"d_model": "x"}, "width is 'x'"),
        ({"n_kv_heads": 3}, "4 heads cannot share 3 key heads"),
        ({"model_type": "lada"}, "model_type 'lada' is not a known family; did you mean 'llada'"),
        ({"model_type": "gpt2"}, "not a known family"),
        ({"block_type": "sequential"}, "block_type is 'sequential'"),
        ({"alibi": True}, "alibi is True"),
        ({"rope_full_precision": False}, "rope_full_precision is False"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "RoPE of type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "RoPE of type 'llama3'"),
        ({"rope_theta": None}, "theta is None"),
        ({"rms_norm_eps": "1e-5"}, "eps is '1e-5'"),
        ({"eos_token_id": "ab"}, "eos_token_id is 'ab'"),
        ({"mask_token_id": [1.5]}, "mask_token_id is"),
        ({"shift": "false"}, "shift is 'false'"),
        ({"head_dim": 7}, "head_dim is 7; wanted an even one"),
    ],
)
def test_configs_that_cannot_be_run(tmp_path, checkpoint, change, message) -> None:
    config, state = checkpoint
    with pytest.raises(CheckpointError, match=message):
        load_model(save(tmp_path, {**config, **change}, state), device="cpu")


def test_a_missing_key_is_named(tmp_path, checkpoint) -> None:
    config, state = checkpoint
    del config["mlp_hidden_size"]
    with pytest.raises(CheckpointError, match="the key 'mlp_hidden_size' is missing"):
        load_model(save(tmp_path, config, state), device="cpu")


def test_pickles_are_refused(tmp_path, checkpoint) -> None:
    folder = save(tmp_path, *checkpoint)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model.safetensors"):
        load_model(folder, device="cpu")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match=r"pickled weights .*safe_serialization=True"):
        load_model(folder, device="cpu")


def test_folders_that_are_none(tmp_path, monkeypatch) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        find_folder(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        LLM.load(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not readable JSON"):
        LLM.load(tmp_path / "empty")


def test_a_hub_id_goes_to_the_hub(tmp_path, monkeypatch, checkpoint) -> None:
    """The client's own call, answered from a folder: what is asked for, and what comes of it."""
    import huggingface_hub

    folder, asked = save(tmp_path, *checkpoint), {}

    def answer(name, **options):
        asked.update(name=name, **options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    assert LLM.load("owner/model", device="cpu").name == "owner/model"
    assert asked["name"] == "owner/model"
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any(".py" in p or ".bin" in p for p in asked["allow_patterns"])

    def fail(name, **options):
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=r"could not be fetched from the hub: no route$"):
        LLM.load("owner/model")


def test_bad_devices_and_dtypes(tmp_path, checkpoint) -> None:
    folder = save(tmp_path, *checkpoint)
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        load_model(folder, device="gpu")
    for missing in ("cuda", "meta", "mps"):
        if missing == "meta" or not torch.cuda.is_available():
            with pytest.raises(InputError, match=missing):
                load_model(folder, device=missing)
    with pytest.raises(InputError, match="unknown dtype 'float8'"):
        load_model(folder, dtype="float8", device="cpu")
