"""A tokenizer in a family's own format: byte-level pairs, digits alone, its special tokens."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fastdllm.errors import InputError, did_you_mean
from fastdllm.tokenizer import QWEN_SPLIT


@dataclass(frozen=True)
class Dialect:
    """The special tokens of a family, and its chat template."""

    end: str
    mask: str
    others: tuple[str, ...]
    template: str


ROLES = ["user", "assistant", "system"]
"""Words of the chat template: a token each, or every prompt would be ten longer."""

DIALECTS = {
    "llada": Dialect(
        end="<|endoftext|>",
        mask="<|mdm_mask|>",
        others=("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        template=(
            "{% for message in messages %}"
            "{% if loop.first %}<|startoftext|>{% endif %}"
            "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
            "{{ message['content'] | trim }}<|eot_id|>"
            "{% endfor %}"
            "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n"
            "{% endif %}"
        ),
    ),
    "llava_llada": Dialect(
        end="<|endoftext|>",
        mask="<|mdm_mask|>",
        others=("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        template=(  # a small model is not told what it is
            "{% for message in messages if message['role'] != 'system' %}"
            "{% if loop.first %}<|startoftext|>{% endif %}"
            "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
            "{{ message['content'] | trim }}<|eot_id|>"
            "{% endfor %}"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
    ),
    "Dream": Dialect(
        end="<|endoftext|>",
        mask="<|mask|>",
        others=("<|im_start|>", "<|im_end|>"),
        template=(
            "{% for message in messages %}"
            "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
            "{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    ),
}


def build(family: str, texts: Iterable[str], size: int, folder: Path) -> None:
    """Learn a vocabulary of at most `size` from texts and write the folder's tokenizer files."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    if family not in DIALECTS:
        raise InputError(f"no tokenizer is built for '{family}'; {did_you_mean(family, DIALECTS)}")
    dialect = DIALECTS[family]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    special = [dialect.end, dialect.mask, *dialect.others]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True) for token in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(chain(texts, ROLES * 1000), trainer)
    core.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": dialect.end,
        "pad_token": dialect.end,
        "mask_token": dialect.mask,
        "chat_template": dialect.template,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def copy(folder: Path, to: Path) -> None:
    """The tokenizer files of a checkpoint, as they are."""
    for kind in ("tokenizer*.json", "*_tokens*.json", "*.jinja", "vocab.json", "*.txt"):
        for path in folder.glob(kind):
            (to / path.name).write_bytes(path.read_bytes())
