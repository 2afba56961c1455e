# ruff: noqa: E501  the card's text is Markdown, wide lines and all
"""Measure an embedded model and write its card.

    python benchmarks/card.py tiny-dream --run runs/tiny-dream --problems 200 --skip 248

Takes the trained folder into src/fastdllm/zoo, and the logs and curves of it and of the runs it goes
on from into docs. Evaluates it on held-out problems of every task (after the first so many with --skip,
which training may have been watched on), measures its calibration, and writes the card (README.md) and
measured.json beside the weights. What measured.json already holds for the same weights and problems is
measured again only with --again.
"""

import argparse
import datetime
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from fastdllm.bench.reproduce import taught
from fastdllm.eval.reliability import on_own_order, on_random_masks
from fastdllm.eval.run import Sheet, machine, run
from fastdllm.eval.summary import Summary, wilson
from fastdllm.eval.task import GENERATED, generated
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.models.loading import ZOO
from fastdllm.training import recipe as recipes
from fastdllm.training.run import plot, read_metrics

RULES = ("full", "threshold:0.9", "threshold:0.5", "factor:0.75", "frechet:0.25")
LEFT_TO_RIGHT = "left to right"
NO_CACHE = ", no cache"
RISKY = (*RULES, "topk:4")
"""Shown on lists without a cache, kind by kind."""
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
BATCH = 64
DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="tiny-llada, tiny-dream or tiny-llada-v")
    parser.add_argument("--run", type=Path, help="take the weights of this run")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--skip", type=int, help="the first so many of each task")
    parser.add_argument("--tasks", default="", help="with commas between; else all it was taught")
    parser.add_argument("--again", action="store_true", help="what was measured of them, too")
    parser.add_argument("--only-write", action="store_true", help="no measuring")
    arguments = parser.parse_args()
    folder = ZOO / arguments.model
    if arguments.run:
        take(arguments.run, folder)
    measured = Measured(folder, arguments.skip)
    if not arguments.only_write:
        llm = LLM.load(folder, device="cpu")
        for name in arguments.tasks.split(",") if arguments.tasks else taught(arguments.model):
            if arguments.again:
                measured.drop(name)
            measure(llm, name, arguments.problems, measured)
    if not measured.values["results"]:
        parser.error(f"nothing was measured of the weights in {folder}; leave --only-write out")
    (folder / "README.md").write_text(card(arguments.model, folder, measured.values))
    print(folder / "README.md")


def take(run: Path, folder: Path) -> None:
    """The weights into the package, logs and curves into the docs; nothing, if one is missing."""
    made = recipes.load(ZOO / "recipes" / f"{folder.name}.json")
    if not recipes.agree(made, recipes.load(run / "recipe.json"), made.steps):
        raise SystemExit(f"{run} is not what the recipe {made.name} makes")
    about: dict[str, Any] = {"seeds": [], "steps": 0, "tokens": 0, "hours": 0.0}
    before = chain(run)
    for one in before:
        last = [line for line in read_metrics(one / "metrics.jsonl") if "seconds" in line][-1]
        about["seeds"].append(recipes.load(one / "recipe.json").seed)
        about["steps"] += last["step"]
        about["tokens"] += last["tokens"]
        about["hours"] += last["seconds"] / 3600
        if plot(one) is None:
            raise SystemExit("the curves want matplotlib; try: pip install -e '.[dev]'")
    about["learnt"] = torch.load(run / "state.pt", weights_only=True)["learnt"]
    about["recipe"] = asdict(made)
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(run / name, folder / name)
    for one in before:
        shutil.copyfile(one / "curve.svg", DOCS / "figures" / f"{one.name}.svg")
        shutil.copyfile(one / "metrics.jsonl", DOCS / "logs" / f"{one.name}.jsonl")
    (folder / "training.json").write_text(json.dumps(about, indent=2) + "\n")


def chain(run: Path) -> list[Path]:
    """The run, after those beside it that it goes on from."""
    before = recipes.load(run / "recipe.json").init
    return [*(chain(run.parent / Path(before).name) if before else []), run]


class Measured:
    """measured.json: what was measured of these weights, kept as it comes in."""

    def __init__(self, folder: Path, skip: int | None) -> None:
        self.path = folder / "measured.json"
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
        old = json.loads(self.path.read_text()) if self.path.exists() else {}
        same = old.get("weights") == weights
        if same and skip not in (None, old["skip"]):
            raise SystemExit(f"{self.path} was measured with --skip {old['skip']}; delete it first")
        self.values: dict[str, Any] = old if same else {
            "weights": weights, "skip": skip or 0, "results": {},
            "machine": machine(),
            "date": datetime.date.today().isoformat(),
        }  # fmt: skip

    def drop(self, task: str) -> None:
        results = self.values["results"]
        self.values["results"] = {k: v for k, v in results.items() if not k.startswith(f"{task}/")}

    def get(self, key: str, count: int) -> Any:
        found = self.values["results"].get(key)
        return found if found and found["count"] == count else None

    def put(self, key: str, value: dict[str, Any]) -> None:
        self.values["results"][key] = value
        self.path.write_text(json.dumps(self.values, indent=2) + "\n")


def variants(task: str) -> dict[str, dict[str, Any]]:
    """What is measured of a task, and how it differs from the settings of all."""
    found: dict[str, dict[str, Any]] = {rule: {"select": rule} for rule in RULES}
    found[LEFT_TO_RIGHT] = {"select": "full", "block_size": 1}  # a block of one token
    if task == "lists":
        found |= {f"{rule}{NO_CACHE}": {"select": rule, "cache": "none"} for rule in RISKY}
    return found


def measure(llm: LLM, name: str, count: int, measured: Measured) -> None:
    task = generated(name)
    skip = measured.values["skip"]
    whole = task.held_out(skip + count)[skip:]
    few = whole[: max(1, count // 4)]
    base = Generation(64 if whole[0].images else 256, cache="prefix")
    for label, change in variants(name).items():
        key = f"{name}/{task.version}/{label}"
        # Left to right reads the whole canvas for every token.
        problems = few if label == LEFT_TO_RIGHT else whole
        if measured.get(key, len(problems)):
            continue
        sheet = Sheet(None, replace(base, **change))
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
| training | {seeds}; {steps:,} steps of {batch} rows, {tokens:,} tokens, {hours:.1f} h on 2 cores |
| again | `make train-tiny TINY="{again}"` (as these weights were made: docs/models.md), then {commands} |
| measured | {machine}, {date}; weights {weights} |
"""

ACCURACY = """\
## Accuracy

Canvas of 256 tokens (64 for pictures), prefix cache, blocks of 32, held-out problems{after}; 95 % Wilson intervals. `full`
commits the surest token of the block, one a pass; left to right is the same with blocks of one.

| task | rule | problems | accuracy | interval | NFE | tokens/NFE |
|---|---|--:|--:|--:|--:|--:|
"""

RISKS = """\
## What a rule risks

Lists without a cache. A copy forgives any rule; in a shuffle every word excludes itself everywhere
else, so of two places that are filled together both may get the same one. (With a cache the words of
the prompt do not hear which of them are taken until the next block, so even one at a time repeats words.)

"""

CALIBRATION = """\
## Calibration

Expected calibration error (15 bins) of the best token on random masks, as in training, and along the
model's own order, where it always speaks where it is surest and the truth is put in. In brackets, mean
confidence less accuracy: positive is over-confident.

| task | problems | tokens | random masks | tokens | own order |
|---|--:|--:|--:|--:|--:|
"""


def card(name: str, folder: Path, values: dict[str, Any]) -> str:
    about = json.loads((folder / "training.json").read_text())
    recipe = recipes.change(recipes.Recipe(), about["recipe"])
    results = values["results"]
    weaknesses = folder / "weaknesses.md"
    facts = {
        **vars(recipe), **about, **values, "name": name, "again": " ".join(needed(name)),
        "seeds": "seed" + "s" * (len(about["seeds"]) > 1) + f" {', '.join(map(str, about['seeds']))}",
        "commands": ", ".join(commands(name, values)),
        "after": f" after the first {values['skip']}" if values["skip"] else "",
        "size": (folder / "model.safetensors").stat().st_size / 1e6,
        "dtype": json.loads((folder / "config.json").read_text())["torch_dtype"],
        "origin": f"from {Path(recipe.graft).name}'s weights" if recipe.graft else "from scratch",
        "tasks": ", ".join(f"{task} v{about['learnt'][task]}" for task in recipe.tasks),
    }  # fmt: skip
    return "\n".join(
        [
            INTRODUCTION.format_map(facts),
            ACCURACY.format_map(facts) + accuracy_rows(results),
            *kinds(results),
            CALIBRATION + calibration_rows(results),
            "## Known weaknesses\n",
            weaknesses.read_text() if weaknesses.exists() else "None recorded.\n",
        ]
    )


def needed(name: str) -> list[str]:
    """The model, after all that it begins with."""
    recipe = recipes.load(ZOO / "recipes" / f"{name}.json")
    before = recipe.init or recipe.graft
    return [*(needed(Path(before).name) if before else []), name]


def commands(name: str, values: dict[str, Any]) -> list[str]:
    """What measures all of it: one command for the tasks with equally many problems."""
    tasks: dict[int, list[str]] = {}
    for key, result in values["results"].items():
        if key.endswith("/full"):
            tasks.setdefault(result["count"], []).append(key.split("/")[0])
    skip = f" --skip {values['skip']}" if values["skip"] else ""
    return [
        f"`python benchmarks/card.py {name} --run runs/{name}{skip} --problems {count}"
        f" --tasks {','.join(names)}`"
        for count, names in tasks.items()
    ]


def accuracy_rows(results: dict[str, Any]) -> str:
    rows = ""
    risky = [f"{rule}{NO_CACHE}" for rule in RISKY]
    for key, r in ordered(results, (*RULES, LEFT_TO_RIGHT, *risky)):
        task, _, rule = key.split("/")
        more = f"{r['nfe']:.1f} | {r['tokens_per_nfe']:.2f}"
        rows += accuracy_row(task, rule, r["right"], r["count"], more)
        if task == "lists" and rule in RULES:
            others = [r["kinds"][kind] for kind in r["kinds"] if kind != "shuffle"]
            right, count = (sum(numbers) for numbers in zip(*others, strict=True))
            rows += accuracy_row("lists, no shuffle", rule, right, count, " | ")
    return rows


def accuracy_row(task: str, rule: str, right: int, count: int, more: str) -> str:
    low, high = wilson(right, count)
    share = f"{right / count:.1%} | {low:.1%} .. {high:.1%}"
    return f"| {task} | {rule} | {count} | {share} | {more} |\n"


def kinds(results: dict[str, Any]) -> list[str]:
    """Right answers by kind of problem, a column a rule: what one kind forgives, another does not."""
    rows = "".join(kind_rows(results, key, RULES, "") for key, _ in ordered(results, ("full",)))
    found = [f"Right answers by kind:\n\n{kind_head(RULES)}{rows}"] if rows else []
    for key, _ in ordered(results, (f"full{NO_CACHE}",)):
        rows = kind_rows(results, key, RISKY, NO_CACHE)
        found.append(f"{RISKS}{kind_head(RISKY)}{rows}")
    return found


def kind_head(rules: Sequence[str]) -> str:
    return f"| task | kind | problems | {' | '.join(rules)} |\n|---|---|--:{'|--:' * len(rules)}|\n"


def kind_rows(results: dict[str, Any], key: str, rules: Sequence[str], suffix: str) -> str:
    start, rows = key.rpartition("/")[0], ""
    for kind, (_, count) in results[key]["kinds"].items():
        of = [results.get(f"{start}/{rule}{suffix}", {"kinds": {}})["kinds"] for rule in rules]
        cells = " | ".join(f"{found[kind][0]}" if kind in found else "-" for found in of)
        rows += f"| {start.split('/')[0]} | {kind.replace('_', ' ')} | {count} | {cells} |\n"
    return rows


def calibration_rows(results: dict[str, Any]) -> str:
    rows = ""
    for key, random in ordered(results, ("calibration on random masks",)):
        own = results.get(key.replace("random masks", "own order"))
        cells = [
            f"{r['tokens']:,} | {r['ece']:.4f} ({r['over']:+.4f})" if r else "- | -"
            for r in (random, own)
        ]
        rows += f"| {key.split('/')[0]} | {random['count']} | {' | '.join(cells)} |\n"
    return rows


def ordered(results: dict[str, Any], whats: Sequence[str]) -> list[tuple[str, Any]]:
    keys = [f"{task}/{generated(task).version}/{what}" for task in GENERATED for what in whats]
    return [(key, results[key]) for key in keys if key in results]


if __name__ == "__main__":
    main()
