# ruff: noqa: E501  the card's text is Markdown, wide lines and all
"""Measure an embedded model and write its card.

    python benchmarks/card.py tiny-dream --run runs/tiny-dream --problems 200
    python benchmarks/card.py tiny-llada --run runs/tiny-llada-base runs/tiny-llada-words runs/tiny-llada

Takes the trained folder (the last, if there were several stages) into src/fastdllm/zoo and the logs and
curves into docs, evaluates it on the held-out problems of every task, measures its calibration, and
writes the card (README.md) and measured.json beside the weights. What measured.json already holds for
the same weights and problems is not measured again.
"""

import argparse
import datetime
import hashlib
import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from fastdllm.bench.reproduce import taught
from fastdllm.eval.reliability import on_own_order, on_random_masks
from fastdllm.eval.run import Sheet, run
from fastdllm.eval.summary import Summary
from fastdllm.eval.task import GENERATED, generated
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.models.loading import ZOO
from fastdllm.training import recipe as recipes
from fastdllm.training.run import plot, read_metrics

RULES = ("full", "threshold:0.9", "threshold:0.5", "factor:0.75", "frechet:0.25")
LEFT_TO_RIGHT = "left to right"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
BATCH = 64
DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="tiny-llada, tiny-dream or tiny-llada-v")
    parser.add_argument("--run", type=Path, nargs="+", help="take the weights of the last of these")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--tasks", default="", help="with commas between; else all it was taught")
    parser.add_argument("--only-write", action="store_true", help="no measuring")
    arguments = parser.parse_args()
    folder = ZOO / arguments.model
    if arguments.run:
        take(arguments.run, folder)
    measured = Measured(folder)
    if not arguments.only_write:
        llm = LLM.load(folder, device="cpu")
        for name in arguments.tasks.split(",") if arguments.tasks else taught(arguments.model):
            measure(llm, name, arguments.problems, measured)
    (folder / "README.md").write_text(card(arguments.model, folder, measured.values))
    print(folder / "README.md")


def take(runs: Sequence[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(runs[-1] / name, folder / name)
    about: dict[str, Any] = {"steps": 0, "tokens": 0, "hours": 0.0}
    for stage in runs:
        last = [line for line in read_metrics(stage / "metrics.jsonl") if "seconds" in line][-1]
        about["steps"] += last["step"]
        about["tokens"] += last["tokens"]
        about["hours"] += last["seconds"] / 3600
        shutil.copyfile(stage / "metrics.jsonl", DOCS / "logs" / f"{stage.name}.jsonl")
        plot(stage)
        shutil.copyfile(stage / "curve.svg", DOCS / "figures" / f"{stage.name}.svg")
    about["stages"] = [stage.name for stage in runs]
    about["recipe"] = json.loads((runs[-1] / "recipe.json").read_text())
    (folder / "training.json").write_text(json.dumps(about, indent=2) + "\n")


class Measured:
    """measured.json: what was measured of these weights, kept as it comes in."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "measured.json"
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
        old = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.values: dict[str, Any] = old if old.get("weights") == weights else {
            "weights": weights, "results": {},
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
            f"torch {torch.__version__}",
            "date": datetime.date.today().isoformat(),
        }  # fmt: skip

    def get(self, key: str, count: int) -> Any:
        found = self.values["results"].get(key)
        return found if found and found["count"] == count else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        self.values["results"][key] = value
        self.path.write_text(json.dumps(self.values, indent=2) + "\n")


def measure(llm: LLM, name: str, count: int, measured: Measured) -> None:
    task = generated(name)
    whole = task.held_out(count)
    few = whole[: max(1, count // 4)]
    for rule in (*RULES, LEFT_TO_RIGHT):
        key = f"{name}/{task.version}/{rule}"
        # Left to right reads the whole canvas for every token.
        problems = few if rule == LEFT_TO_RIGHT else whole
        if measured.get(key, len(problems)):
            continue
        # A block of one token is decoded left to right.
        base = Generation(64 if problems[0].images else 256, cache="prefix")
        settings = (
            replace(base, select="full", block_size=1)
            if rule == LEFT_TO_RIGHT
            else replace(base, select=rule)
        )
        sheet = Sheet(None, settings)
        batches = -(-len(problems) // BATCH)
        for _ in track(run(llm, task, problems, [sheet], BATCH), key, batches, transient=True):
            pass
        total = Summary.of(sheet.lines.values())
        kind_of = {p.fingerprint: p.check.get("kind", "") for p in problems}
        kinds = sorted(set(kind_of.values()) - {""})
        value = {
            "count": total.count, "right": total.right, "interval": total.interval,
            "nfe": total.mean_nfe, "tokens_per_nfe": total.tokens_per_nfe,
            "kinds": {
                kind: [sum(part), len(part)]
                for kind in kinds
                for part in [[x["right"] for i, x in sheet.lines.items() if kind_of[i] == kind]]
            },
        }  # fmt: skip
        measured.put(key, value)
        print(f"{key}: {total.accuracy:.1%}, {total.tokens_per_nfe:.2f} tokens/NFE", flush=True)
    for place, probe in (("random masks", on_random_masks), ("own order", on_own_order)):
        key = f"{name}/{task.version}/calibration on {place}"
        if not measured.get(key, len(few)):
            seen = probe(llm, few)
            gap = float(seen.confidence.mean() - seen.right.float().mean())
            measured.put(
                key, {"count": len(few), "ece": seen.error, "over": gap, "tokens": len(seen.right)}
            )
            print(f"{key}: {seen.error:.4f}, over-confident by {gap:+.4f}", flush=True)


INTRODUCTION = """\
# {name}

A masked diffusion language model of the {family} family, small enough to come with the package
({size:.1f} MB, {dtype}), trained {origin} on tasks that are generated from a seed. It solves those
tasks and nothing else: it is here to measure decoding on, not to talk to.

    from fastdllm import LLM
    llm = LLM.load("{name}")

| | |
|---|---|
| shape | {layers} layers, width {width}, {heads} heads ({kv_heads} for keys), feed-forward {mlp} |
| data | {tasks}; one prompt in eight, by its hash, is held out |
| training | seed {seed}, {steps:,} steps of {batch} rows, {tokens:,} tokens, {hours:.1f} h on 2 cores |
| again | `make train-tiny TINY="{stages}"`, then `python benchmarks/card.py {name} --run {runs}` |
| measured | {machine}, {date}; weights {weights} |
"""

ACCURACY = """\
## Accuracy

Canvas of 256 tokens (64 for pictures), prefix cache, blocks of 32, held-out problems; 95 % Wilson intervals. `full`
commits the surest token of the block, one a pass; left to right is the same with blocks of one.

| task | rule | problems | accuracy | interval | NFE | tokens/NFE |
|---|---|--:|--:|--:|--:|--:|
"""

CALIBRATION = """\
## Calibration

Expected calibration error (15 bins) of the best token on random masks, as in training, and along the
model's own order, where it always speaks where it is surest and the truth is put in. In brackets, mean
confidence less accuracy: positive is over-confident.

| task | random masks | own order |
|---|--:|--:|
"""


def card(name: str, folder: Path, values: dict[str, Any]) -> str:
    about = json.loads((folder / "training.json").read_text())
    recipe = recipes.change(recipes.Recipe(), about["recipe"])
    results = values["results"]
    weaknesses = folder / "weaknesses.md"
    facts = {
        **vars(recipe), **about, **values, "name": name, "stages": " ".join(about["stages"]),
        "runs": " ".join(f"runs/{stage}" for stage in about["stages"]),
        "size": (folder / "model.safetensors").stat().st_size / 1e6,
        "dtype": json.loads((folder / "config.json").read_text())["torch_dtype"],
        "origin": f"from {Path(recipe.graft).name}'s weights" if recipe.graft else "from scratch",
        "tasks": ", ".join(f"{task} v{generated(task).version}" for task in recipe.tasks),
    }  # fmt: skip
    return "\n".join(
        [
            INTRODUCTION.format_map(facts),
            ACCURACY + accuracy_rows(results),
            *kinds(results),
            CALIBRATION + calibration_rows(results),
            "## Known weaknesses\n",
            weaknesses.read_text() if weaknesses.exists() else "None recorded.\n",
        ]
    )


def accuracy_rows(results: dict[str, Any]) -> str:
    rows = ""
    for key, r in ordered(results, (*RULES, LEFT_TO_RIGHT)):
        task, _, rule = key.split("/")
        low, high = r["interval"]
        rows += (
            f"| {task} | {rule} | {r['count']} | {r['right'] / r['count']:.1%} "
            f"| {low:.1%} .. {high:.1%} | {r['nfe']:.1f} | {r['tokens_per_nfe']:.2f} |\n"
        )
    return rows


def kinds(results: dict[str, Any]) -> list[str]:
    rows = "".join(
        f"| {key.split('/')[0]} | {kind.replace('_', ' ')} | {right} | {count} |\n"
        for key, r in ordered(results, ("full",))
        for kind, (right, count) in r["kinds"].items()
    )
    head = "By kind, `full`:\n\n| task | kind | right | of |\n|---|---|--:|--:|\n"
    return [head + rows] if rows else []


def calibration_rows(results: dict[str, Any]) -> str:
    rows = ""
    for key, random in ordered(results, ("calibration on random masks",)):
        own = results.get(key.replace("random masks", "own order"))
        cells = [f"{r['ece']:.4f} ({r['over']:+.4f})" if r else "-" for r in (random, own)]
        rows += f"| {key.split('/')[0]} | {' | '.join(cells)} |\n"
    return rows


def ordered(results: dict[str, Any], whats: Sequence[str]) -> list[tuple[str, Any]]:
    keys = [f"{task}/{generated(task).version}/{what}" for task in GENERATED for what in whats]
    return [(key, results[key]) for key in keys if key in results]


if __name__ == "__main__":
    main()
