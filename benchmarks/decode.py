"""Whole decoding: ours against a straightforward decoder, same weights, same schedule, one run.

A random model of width 512 and 8 layers, float32, prompt 256, 128 new tokens, blocks of 32, eight
tokens a step, at LLaDA's vocabulary and at a small one. The two take turns; the figure is the
median of the ratios.
"""

import json
import statistics
import time

import straightforward
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fastdllm import LLM, Generation
from fastdllm.bench.memory import peak_bytes
from fastdllm.eval.run import machine
from fastdllm.models.families import read_config
from fastdllm.models.transformer import Transformer

PROMPT, NEW, BLOCK, PER_STEP = 256, 128, 32, 8
ROUNDS = {126_464: 2, 512: 7}


def random_model(vocab: int) -> Transformer:
    config = read_config(
        {
            "model_type": "llada", "d_model": 512, "n_heads": 8, "n_kv_heads": 8, "n_layers": 8,
            "mlp_hidden_size": 1536, "embedding_size": vocab, "max_sequence_length": 1024,
            "rope_theta": 5e5, "mask_token_id": vocab - 1,
        }
    )  # fmt: skip
    model = Transformer(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        scale = 1.0 if "norm" in name or "embed" in name else parameter.shape[-1] ** -0.5
        parameter.data.normal_(0.0, scale, generator=generator)
        if "norm" in name:
            parameter.data.fill_(1.0)
    model.head.weight.data[vocab - 1] = 0  # the baseline would loop for ever on a proposed mask
    return model


class Clock:
    """Seconds spent inside the transformer and its head."""

    def __init__(self, model: Transformer) -> None:
        self.seconds = 0.0
        for module in (model, model.head):
            module.forward = self.timed(module.forward)

    def timed(self, function):
        def call(*arguments, **named):
            start = time.perf_counter()
            out = function(*arguments, **named)
            self.seconds += time.perf_counter() - start
            return out

        return call


def measure(vocab: int, cache: str) -> dict[str, object]:
    model = random_model(vocab)
    llm = LLM(model)
    prompt = torch.randint(0, vocab - 1, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    settings = Generation(NEW, BLOCK, f"topk:{PER_STEP}", cache, early_stop=False)
    short = Generation(BLOCK, BLOCK, f"topk:{PER_STEP}", cache, early_stop=False)

    def theirs():
        return straightforward.generate(model, prompt, NEW, BLOCK, PER_STEP, cache)

    def ours():
        return llm.generate(prompt[0], settings)

    (x, nfe), done = theirs(), ours()  # also the warm-up
    same = x[0, PROMPT:].tolist() == list(done.tokens)
    assert nfe == done.usage.nfe
    memory = (
        peak_bytes(lambda: straightforward.generate(model, prompt, BLOCK, BLOCK, PER_STEP, cache)),
        peak_bytes(lambda: llm.generate(prompt[0], short)),
    )
    taken = []
    clock = Clock(model)
    inside = total = 0.0
    for _ in range(ROUNDS[vocab]):
        start = time.perf_counter()
        theirs()
        middle = time.perf_counter()
        clock.seconds = 0.0
        ours()
        end = time.perf_counter()
        taken.append((middle - start, end - middle))
        inside, total = inside + clock.seconds, total + end - middle
    return {
        "vocab": vocab,
        "cache": cache,
        "nfe": nfe,
        "same_tokens": same,
        "usual_tps": round(NEW / statistics.median(a for a, _ in taken), 1),
        "ours_tps": round(NEW / statistics.median(b for _, b in taken), 1),
        "speedup": round(statistics.median(a / b for a, b in taken), 2),
        "outside": round(1 - inside / total, 3),
        "usual_mb": round(memory[0] / 1e6),
        "ours_mb": round(memory[1] / 1e6),
    }


def run() -> dict[str, object]:
    """Measure every case and print the table."""
    cases = [(vocab, cache) for vocab in ROUNDS for cache in ("none", "prefix", "dual")]
    rows = [measure(*case) for case in track(cases, "measuring", transient=True)]
    table = Table(title="decoding, float32: straightforward and ours", title_justify="left")
    names = ("vocab", "cache", "NFE", "same", "usual tok/s", "ours tok/s", "x faster",
             "outside model", "usual MB", "ours MB")  # fmt: skip
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=110).print(table)
    return {"benchmark": "decode", "machine": machine(), "rows": rows}


if __name__ == "__main__":
    print(json.dumps(run()))
