"""Muon against AdamW: the same small model, data and masks from the same seed, step for step.

    python benchmarks/optimizers.py --steps 300

Both learn to copy lists, from nothing, on one thread; AdamW at several rates, since one that suits
Muon's embeddings need not suit the matrices. They take turns step by step, so that a noisy machine
favours none. The last line is JSON.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fastdllm.eval.run import machine
from fastdllm.training.recipe import Recipe, change
from fastdllm.training.train import Trainer, start

BASE = {
    "layers": 5, "mlp": 352, "canvas": 64, "batch": 16, "tails": 0.0, "warmup": 0.1, "decay": 0.3,
    "tasks": {"lists/copy": 1}, "phases": [{"until": 1, "masks": {"random": 1}, "even": True}],
}  # fmt: skip
RIVALS = {
    "muon": {"optimizer": "muon", "lr": 0.003, "matrix_lr": 0.015},
    "adamw, 0.001": {"optimizer": "adamw", "lr": 0.001},
    "adamw, 0.003": {"optimizer": "adamw", "lr": 0.003},
    "adamw, 0.01": {"optimizer": "adamw", "lr": 0.01},
}
LAST = 50


def run(steps: int, folder: Path) -> dict[str, dict[str, float]]:
    trainers = {
        name: start(
            change(Recipe(), {**BASE, **rates, "steps": steps}),
            folder / str(i),
            device=torch.device("cpu"),
        )
        for i, (name, rates) in enumerate(RIVALS.items())
    }
    for _ in track(range(steps), "training", transient=True):
        for trainer in trainers.values():
            trainer.train_step()
    return {name: figures(trainer) for name, trainer in trainers.items()}


def figures(trainer: Trainer) -> dict[str, float]:
    return {
        "loss": sum(trainer.losses[-LAST:]) / LAST,
        "seconds_a_step": trainer.seconds / trainer.step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    if arguments.steps < LAST:
        parser.error(f"--steps {arguments.steps}; wanted at least {LAST}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments.steps, Path(folder))
    table = Table("optimizer", f"loss, last {LAST}", "s a step")
    for name, f in found.items():
        table.add_row(name, f"{f['loss']:.3f}", f"{f['seconds_a_step']:.2f}")
    Console().print(table)
    print(json.dumps({"steps": arguments.steps, "machine": machine(), "optimizers": found}))


if __name__ == "__main__":
    main()
