"""Logits to profile: ours against the usual way, on the same tensors in one run.

The two take turns, round by round, so that a noisy machine cannot favour one; the figure is the
median of the per-round ratios over several fresh processes. Fresh ones, because the allocator's
luck decides for a whole process whether the usual way's float64 copies of the smallest shape are
faulted in anew in every call. Memory is what torch's profiler saw allocated beyond the logits.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fastdllm.bench.memory import peak_bytes
from fastdllm.eval.run import machine
from fastdllm.predict import predict

SHAPES = [(1, 32, 126_464), (8, 32, 126_464), (1, 384, 126_464)]
MASK_ID = 126_336
ROUNDS, PROCESSES = 9, 5


def usual(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As the public decoders do it: float64 soft-max, arg-max, gather."""
    p = torch.softmax(logits.to(torch.float64), dim=-1)
    token = logits.argmax(dim=-1)
    return token, p.gather(-1, token.unsqueeze(-1)).squeeze(-1)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def rounds(shape: tuple[int, ...]) -> dict[str, list[float]]:
    """In this process: the seconds of every round, and the peak bytes of each way."""
    logits = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    logits[..., MASK_ID] = -20.0  # so that both propose the same tokens

    def ours() -> object:
        return predict(logits, forbidden=(MASK_ID,))

    def theirs() -> object:
        return usual(logits)

    assert torch.equal(predict(logits, forbidden=(MASK_ID,)).token, usual(logits)[0])
    taken = [(seconds(theirs), seconds(ours)) for _ in range(ROUNDS + 2)][2:]
    return {
        "usual": [a for a, _ in taken],
        "ours": [b for _, b in taken],
        "bytes": [peak_bytes(theirs), peak_bytes(ours)],
    }


def measure(shape: tuple[int, ...]) -> dict[str, object]:
    runs = [
        json.loads(subprocess.check_output([sys.executable, __file__, *map(str, shape)]))
        for _ in range(PROCESSES)
    ]
    usual_s = [t for run in runs for t in run["usual"]]
    ours_s = [t for run in runs for t in run["ours"]]
    memory = runs[0]["bytes"]
    return {
        "shape": list(shape),
        "usual_ms": round(1e3 * statistics.median(usual_s), 2),
        "ours_ms": round(1e3 * statistics.median(ours_s), 2),
        "speedup": round(statistics.median(a / b for a, b in zip(usual_s, ours_s, strict=True)), 2),
        "usual_mb": round(memory[0] / 1e6, 1),
        "ours_mb": round(memory[1] / 1e6, 1),
        "memory_ratio": round(memory[0] / memory[1], 1),
    }


def run() -> dict[str, object]:
    """Measure every shape and print the table."""
    table = Table(title="logits to profile, float32: the usual way and ours", title_justify="left")
    names = ("shape", "usual ms", "ours ms", "x faster", "usual MB", "ours MB", "x less")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    rows = [measure(shape) for shape in track(SHAPES, "measuring", transient=True)]
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=110).print(table)
    return {"benchmark": "predict", "machine": machine(), "rows": rows}


if __name__ == "__main__":
    of_one = tuple(map(int, sys.argv[1:]))
    print(json.dumps(rounds(of_one) if of_one else run()))
