"""The paper's tables and figures as one command each, measured here, beside what the paper prints.

An experiment is a list of cells: a task, a setting, and the paper's row where it has one. Cells
share their answers through the folder of a run, so what two experiments ask alike is asked once,
and an interrupted experiment goes on where it was.
"""

import csv
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastdllm.bench.sweep import grid
from fastdllm.errors import InputError, did_you_mean
from fastdllm.eval.report import measure
from fastdllm.eval.run import Sheet, machine
from fastdllm.eval.summary import Summary, mcnemar
from fastdllm.eval.task import GENERATED, get, with_pictures
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.models.loading import EMBEDDED, ZOO

RULES = {"threshold": "threshold:0.9", "factor": "factor:0.75", "frechet": "frechet:0.25"}
# What stands in for a benchmark on the embedded models.
SIBLINGS = {
    "gsm8k": "word-problems", "math": "algebra", "humaneval": "functions", "mbpp": "lists",
    "mathvista": "shapes", "mathverse": "shapes",
}  # fmt: skip
PICTURES = ("mathvista", "mathverse")
# Which embedded model answers when none is named.
MODELS = {
    "table-v": "tiny-llada-v", "fig-margin": "tiny-llada-v", "table-dream": "tiny-dream",
}  # fmt: skip


@cache
def paper() -> dict[str, Any]:
    """The paper's figures, each with where it stands."""
    found: dict[str, Any] = json.loads((files("fastdllm.bench") / "paper.json").read_text())
    return found


@dataclass(frozen=True)
class Cell:
    """One row of an experiment."""

    task: str
    shots: int | None
    select: str
    cache: str = "prefix"
    max_tokens: int = 256
    block_size: int = 32
    early_stop: bool = False
    """The paper's decoders fill the canvas to its end; LLaDA-V's stops."""
    printed: Mapping[str, Any] | None = field(default=None, compare=False)
    """What the paper prints for it."""

    def settings(self, stop: tuple[str, ...]) -> Generation:
        """As the engine wants it."""
        return Generation(
            self.max_tokens, self.block_size, self.select, self.cache, stop=stop,
            early_stop=self.early_stop,
        )  # fmt: skip


# --- The experiments ---------------------------------------------------------------------------


def _printed_rows(name: str) -> list[Cell]:
    """Tables whose rows are printed: one cell each."""
    about = paper()[name]
    return [
        Cell(
            row["task"],
            row["shots"],
            row.get("select") or RULES[row["rule"]],
            row.get("cache") or about["cache"],
            row["max_tokens"],
            row.get("block_size") or about.get("block_size", 32),
            early_stop=row["task"] in PICTURES,
            printed=row,
        )
        for row in about["rows"]
    ]


def _frontier() -> list[Cell]:
    """Figure 3: margins from 0 to 0.3, the factors that match them, and thresholds."""
    margins = (0.02, 0.1, 0.2, 0.25, 0.3)
    rules = [f"frechet:{m}" for m in margins] + [f"factor:{1 - m:g}" for m in margins]
    rules += [f"threshold:{t}" for t in (0.5, 0.6, 0.7, 0.8, 0.9)]
    return [Cell("gsm8k", 5, rule) for rule in ["full", *rules]]


def _blocks() -> list[Cell]:
    sizes = (8, 16, 32, 64)
    return [Cell("gsm8k", 5, rule, block_size=s) for s in sizes for rule in RULES.values()]


def _margins(sees: bool) -> list[Cell]:
    """The paper's margins, which it tries on LLaDA-V; of a model that reads text alone, on text."""
    about = paper()["fig-margin"]
    one = Cell("mathvista", None, "full", "prefix:32", 96, 96, early_stop=True)
    one = one if sees else Cell("gsm8k", 5, "full")
    rows = [replace(one, select=f"frechet:{row['margin']}", printed=row) for row in about["rows"]]
    half, factor = replace(one, select="topk:2"), replace(one, select="factor:1.0")
    return [one, half, replace(factor, printed=about["baseline"]), *rows]


SWEPT = (
    "threshold:0.95/0.9/0.7", "factor:0.5/0.75/1", "frechet:0.5/0.25/0.1", "exact:0.5/0.25/0.1",
    "entropy:0.1/0.5/1", "localleap:0.95/0.9/0.8", "hierarchy:0.95/0.9/0.8", "dilated:3/2",
    "klass:0.9/0.6", "credit:0.95/0.9/0.8", "wino:0.9/0.7/0.6", "local:0.5/0.25/0.1",
)  # fmt: skip


def _all_rules(calibration: Path | None) -> list[Cell]:
    """Beyond the paper: every rule over a grid, without a cache, since one of them has none."""
    settings = ["full", *grid(SWEPT)]
    if calibration is not None:
        calibrated = grid(["frechet:0.25/0.1", "stable:0.25/0.1/0.05"])
        settings += [f"{rule},calibration={calibration}" for rule in calibrated]
    return [Cell(task, shots, rule, "none") for task, shots in (("gsm8k", 5), ("math", 4))
            for rule in settings]  # fmt: skip


def _operating_points() -> list[Cell]:
    return [Cell("gsm8k", 5, rule) for rule in RULES.values()]


EXPERIMENTS: dict[str, Callable[[bool], list[Cell]]] = {
    "table1": lambda sees: _printed_rows("table1"),
    "table2": lambda sees: _printed_rows("table2"),
    "table-v": lambda sees: _printed_rows("table3"),
    "table-dream": lambda sees: _printed_rows("table-dream"),
    "table-cache": lambda sees: _printed_rows("table-cache"),
    "fig-frontier": lambda sees: _frontier(),
    "fig-steps": lambda sees: _operating_points(),
    "fig-blocks": lambda sees: _blocks(),
    "fig-margin": _margins,
    "fig-cache-scatter": lambda sees: _printed_rows("table-cache"),
    "divergence": lambda sees: _operating_points(),
    "fig-rules": lambda sees: _all_rules(None),
}


def names(name: str, model: str) -> dict[str, str]:
    """One experiment or all of the paper's, each with the model that answers it.

    >>> names("table3", "path/to/LLaDA-V")
    {'table-v': 'path/to/LLaDA-V'}
    """
    name = {"table3": "table-v"}.get(name, name)
    if name not in (*EXPERIMENTS, "all"):
        known = [*EXPERIMENTS, "table3", "all"]
        raise InputError(f"unknown experiment '{name}'; {did_you_mean(name, known)}")
    own = {one: MODELS[one] for one in MODELS if MODELS[one] in EMBEDDED}
    if name != "all":
        return {name: model or own.get(name, "tiny-llada")}
    of_the_paper = [one for one in EXPERIMENTS if one != "fig-rules"]
    if model == "tiny-llada-v":
        of_the_paper = ["table-v", "fig-margin"]
    elif model or "table-v" not in own:  # nobody who sees
        of_the_paper.remove("table-v")
    return {one: model or own.get(one, "tiny-llada") for one in of_the_paper}


def cells(
    name: str, own: Collection[str] = (), sees: bool = False, calibration: Path | None = None
) -> list[Cell]:
    """The rows of an experiment; on an embedded model its own tasks instead, those it was taught.

    With a calibration, `fig-rules` has the rules that want one too.

    >>> [cell.select for cell in cells("table-v", own=["shapes"], sees=True)]
    ['full', 'topk:2', 'factor:1.0', 'frechet:0.25']
    """
    found = _all_rules(calibration) if name == "fig-rules" else EXPERIMENTS[name](sees)
    pictures = any(cell.task in PICTURES for cell in found)
    if pictures > sees or (own and sees > pictures):
        raise InputError(
            f"{name} asks {'about pictures' if pictures else 'in text alone'}, which this model "
            f"{'cannot see' if pictures else 'was not trained on'}; try --model "
            f"{'path/to/LLaDA-V' if pictures else 'tiny-llada'}"
        )
    # 5 and 8 shots are the same without any.
    return [cell for cell in dict.fromkeys(map(_own, found)) if cell.task in own] if own else found


def taught(model: str) -> tuple[str, ...]:
    """The tasks an embedded model was trained on; none of another's are known.

    >>> taught("tiny-llada-v")
    ('shapes',)
    """
    if model not in EMBEDDED:
        return ()
    return tuple(json.loads((ZOO / model / "training.json").read_text())["recipe"]["tasks"])


def _own(cell: Cell) -> Cell:
    """A cell on an embedded model: the benchmark's little sibling, until its end of text."""
    small = cell.max_tokens < 256  # the canvas of a question about a picture
    return replace(
        cell, task=SIBLINGS[cell.task], shots=None, early_stop=True,
        max_tokens=64 if small else cell.max_tokens,
        block_size=32 if small else cell.block_size,
    )  # fmt: skip


# --- Running one -------------------------------------------------------------------------------


def run(
    llm: LLM,
    rows: Sequence[Cell],
    data: Path | None,
    limit: int | None,
    batch: int,
    output: Path,
    images: Path | None = None,
) -> list[Sheet]:
    """Measure every cell, task by task, the settings of a task in turns."""
    found: dict[Cell, Sheet] = {}
    for task_name, shots in dict.fromkeys((c.task, c.shots) for c in rows):
        task = get(task_name)
        place_of = _data(data, task_name)
        every = task.problems(place_of, shots)
        wanted_kinds = VISION if task_name == "mathverse" else ""
        problems = [
            with_pictures(p, place_of, images) for p in task.some(every, limit, wanted_kinds)
        ]
        mine = [c for c in rows if (c.task, c.shots) == (task_name, shots)]
        place = task_name if shots is None else f"{task_name}-{shots}-shot"
        folder = output / Path(llm.name).name / place
        wanted = {c: c.settings(task.stop) for c in mine}
        sheets = measure(llm, task, every, problems, list(wanted.values()), batch, folder, shots)
        sheet_of = {sheet.settings: sheet for sheet in sheets}
        found |= {cell: sheet_of[settings] for cell, settings in wanted.items()}
    return [found[cell] for cell in rows]


VISION = "vision-intensive,vision-dominant,vision-only"
"""The problem versions of MathVerse that the paper's figure is over."""


def check_output(name: str, model: str, output: Path) -> None:
    """Complain before the work if its files would replace others than its own."""
    path = output / f"{name}.json"
    with suppress(OSError, ValueError, AttributeError):
        if json.loads(path.read_text()).get("model") == model:
            return
    taken = [p.name for p in output.glob(f"{name}.*")] if output.is_dir() else []
    if taken:
        raise InputError(
            f"{output} holds {taken[0]}, which is not {name} of {model}; name another --output"
        )


def _data(data: Path | None, task: str) -> Path | None:
    """A folder for every benchmark: its own subfolder, under either of its names."""
    if data is None or task in GENERATED:
        return None
    names = (task, f"{task}500")
    return next((data / name for name in names if (data / name).is_dir()), data)


def figures(rows: Sequence[Cell], sheets: Sequence[Sheet]) -> list[dict[str, Any]]:
    """The measured columns, each compared with threshold's row of the same task and canvas."""
    found = []
    for cell, sheet in zip(rows, sheets, strict=True):
        base = _baseline(cell, rows, sheets)
        s, b = Summary.of(sheet.lines.values()), Summary.of(base.lines.values())
        found.append(
            {
                "task": cell.task,
                "metric": get(cell.task).metric,
                "shots": cell.shots,
                "max_tokens": cell.max_tokens,
                "block_size": cell.block_size,
                "cache": cell.cache,
                "select": cell.select,
                "count": s.count,
                "accuracy": 100 * s.accuracy,
                "low": 100 * s.interval[0],
                "high": 100 * s.interval[1],
                "p": mcnemar(base.lines, sheet.lines)[2],
                "nfe": s.mean_nfe,
                "nfe_total": s.nfe,
                "nfe_less": 1 - s.mean_nfe / (b.mean_nfe or math.inf),
                "tokens_per_nfe": s.tokens_per_nfe,
                "tokens_per_second": s.tokens_per_second,
                "speed_up": s.tokens_per_second / (b.tokens_per_second or math.inf),
                **{f"paper_{key}": (cell.printed or {}).get(key) for key in PRINTED},
            }
        )
    return found


PRINTED = ("accuracy", "tokens_per_second", "nfe_total", "tokens_per_nfe", "speed_up")


def _baseline(cell: Cell, rows: Sequence[Cell], sheets: Sequence[Sheet]) -> Sheet:
    """Threshold's sheet beside this one; else the first of its task."""
    alike = ("task", "shots", "cache", "max_tokens", "block_size")
    near = [
        (c, s)
        for c, s in zip(rows, sheets, strict=True)
        if all(getattr(c, key) == getattr(cell, key) for key in alike)
    ]
    return next((s for c, s in near if c.select == RULES["threshold"]), near[0][1])


# --- Beyond the table --------------------------------------------------------------------------

Extra = dict[str, Any]


def divergence(rows: Sequence[Cell], sheets: Sequence[Sheet]) -> Extra:
    """How many problems the rules answer with other words, and how many with other success.

    Also an example for each rule that alone is right.
    """
    shared = sorted(set.intersection(*(set(sheet.lines) for sheet in sheets)))
    texts = [i for i in shared if len({sheet.lines[i]["text"] for sheet in sheets}) > 1]
    verdicts = [i for i in shared if len({sheet.lines[i]["right"] for sheet in sheets}) > 1]
    alone: dict[str, Any] = {}
    for cell, sheet in zip(rows, sheets, strict=True):
        mine = [
            i
            for i in verdicts
            if sheet.lines[i]["right"] and sum(s.lines[i]["right"] for s in sheets) == 1
        ]
        if mine:
            written = {
                other.select: s.lines[mine[0]]["text"]
                for other, s in zip(rows, sheets, strict=True)
            }
            # Behind worked examples, the question is the last part.
            asked = sheet.prompts[mine[0]].strip().split("\n\n")[-1]
            alone[cell.select] = {"asked": asked, "texts": written}
    return {
        "count": len(shared),
        "texts_differ": len(texts),
        "correctness_differs": len(verdicts),
        "alone_right": alone,
    }


def steps(rows: Sequence[Cell], sheets: Sequence[Sheet]) -> Extra:
    """How many tokens a pass commits: by its number in the answer, and how often how many."""
    found = {}
    for cell, sheet in zip(rows, sheets, strict=True):
        commits = [line["commits"] for line in sheet.lines.values()]
        columns = [[c for c in column if c is not None] for column in zip_longest(*commits)]
        counts = Counter(c for row in commits for c in row)
        found[cell.select] = {
            "running": [len(column) for column in columns],
            "mean": [round(sum(column) / len(column), 4) for column in columns],
            "counts": {str(n): counts[n] for n in sorted(counts)},
        }
    return {"steps": found}


def equal_accuracy(rows: Sequence[Cell], sheets: Sequence[Sheet]) -> Extra:
    """Of each rule the fewest passes whose accuracy is not significantly below that of `full`."""
    found: dict[str, Any] = {}
    for task in dict.fromkeys(cell.task for cell in rows):
        mine = [(c, s) for c, s in zip(rows, sheets, strict=True) if c.task == task]
        full = next(s for c, s in mine if c.select == "full")
        best: dict[str, Any] = {}
        for cell, sheet in mine:
            lost, won, p = mcnemar(full.lines, sheet.lines)
            s = Summary.of(sheet.lines.values())
            rule = sheet.settings.rule.name + ("*" if sheet.settings.rule.calibration else "")
            if (lost <= won or p >= 0.05) and s.mean_nfe < best.get(rule, {"nfe": math.inf})["nfe"]:
                best[rule] = {
                    "select": cell.select, "nfe": s.mean_nfe, "accuracy": 100 * s.accuracy, "p": p,
                }  # fmt: skip
        found[task] = dict(sorted(best.items(), key=lambda item: float(item[1]["nfe"])))
    return {"equal_accuracy": found}


EXTRAS: dict[str, Callable[[Sequence[Cell], Sequence[Sheet]], Extra]] = {
    "divergence": divergence,
    "fig-steps": steps,
    "fig-rules": equal_accuracy,
}


def extra(name: str, rows: Sequence[Cell], sheets: Sequence[Sheet]) -> Extra:
    """What an experiment tells besides its table."""
    return EXTRAS[name](rows, sheets) if name in EXTRAS else {}


# --- What is written ---------------------------------------------------------------------------


def write(
    name: str, llm: LLM, found: Sequence[Mapping[str, Any]], more: Extra, output: Path
) -> list[Path]:
    """The experiment as Markdown, CSV and JSON; returns what was written."""
    place = {"fig-cache-scatter": "table-cache", "table-v": "table3"}.get(name, name)
    about = {
        "experiment": name,
        "model": llm.name,
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "paper": {k: v for k, v in paper().get(place, {}).items() if k != "rows"},
    }
    paths = [output / f"{name}.{kind}" for kind in ("md", "csv", "json")]
    paths[0].write_text(markdown(about, found, more))
    with paths[1].open("w", newline="") as file:
        sheet = csv.DictWriter(file, list(found[0]))
        sheet.writeheader()
        sheet.writerows(found)
    paths[2].write_text(json.dumps({**about, "rows": list(found), **more}, indent=2) + "\n")
    return paths


HEADINGS = (
    "task", "len", "block", "cache", "rule", "problems", "accuracy", "95 %", "p", "NFE",
    "NFE in all", "less", "tok/NFE", "tok/s", "speed-up", "paper: accuracy", "NFE in all",
    "tok/NFE", "tok/s", "speed-up",
)  # fmt: skip


def columns(row: Mapping[str, Any]) -> list[str]:
    """A row as text, measured columns first, the paper's last."""

    def shown(key: str, form: str) -> str:
        return format(row[key], form) if row[key] is not None else ""

    return [
        row["task"] if row["shots"] is None else f"{row['task']} ({row['shots']}-shot)",
        str(row["max_tokens"]), str(row["block_size"]), row["cache"], row["select"],
        str(row["count"]),
        f"{row['accuracy']:.1f}", f"{row['low']:.0f}-{row['high']:.0f}", f"{row['p']:.2f}",
        f"{row['nfe']:.1f}", f"{row['nfe_total']:,}", f"{row['nfe_less']:.0%}",
        f"{row['tokens_per_nfe']:.2f}", f"{row['tokens_per_second']:,.0f}",
        f"{row['speed_up']:.2f}x",
        shown("paper_accuracy", ".1f"), shown("paper_nfe_total", ",.0f"),
        shown("paper_tokens_per_nfe", ".2f"), shown("paper_tokens_per_second", ".1f"),
        shown("paper_speed_up", ".2f"),
    ]  # fmt: skip


def headings(found: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The columns that have anything to show, each with its place."""
    cells = [columns(row) for row in found]
    return [(i, name) for i, name in enumerate(HEADINGS) if any(row[i] for row in cells)]


def problems_of(found: Sequence[Mapping[str, Any]]) -> str:
    """How many, or between how many."""
    counts = sorted({row["count"] for row in found})
    return f"{counts[0]} problems" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} problems"


def caption(about: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures of a table are, in sentences."""
    told = [
        f"{about['model']}, {problems_of(found)} a row, {about['machine']}, {about['date']}.",
        "Compared with threshold 0.9 of the same task, canvas and cache, or the first row; p is "
        "McNemar's exact test.",
    ]
    if any(row[f"paper_{key}"] is not None for row in found for key in PRINTED):
        place, model = about["paper"]["from"], about["paper"]["model"]
        told.append(f"The paper's columns: {place}, {model} on an H100.")
    for metric in dict.fromkeys(row["metric"] for row in found if row["metric"] != "accuracy"):
        told.append(f"Our {metric} is not the benchmark's own score, which asks a judge.")
    if any(row["shots"] is None and row["task"] in GENERATED for row in found):
        told.append("The tasks are the embedded models' own, little siblings of the paper's, and "
                    "decoding stops at the end of text; the paper's fills the canvas.")  # fmt: skip
    return told


def markdown(
    about: Mapping[str, Any], found: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
) -> str:
    """A page with the table and where it comes from."""
    kept = headings(found)
    lines = [f"# {about['experiment']}", "", " ".join(caption(about, found)), ""]
    lines += [f"| {' | '.join(name for _, name in kept)} |"]
    lines += ["|" + "|".join("---" if i < 5 else "--:" for i, _ in kept) + "|"]
    lines += [f"| {' | '.join(columns(row)[i] for i, _ in kept)} |" for row in found]
    if "alone_right" in more:
        lines += ["", *_side_by_side(about, more)]
    for task, rules in more.get("equal_accuracy", {}).items():
        lines += ["", f"## {fewest(task)}", ""]
        lines += [f"| {' | '.join(FEWEST)} |", "|---|---|--:|--:|--:|"]
        lines += [f"| {' | '.join(fewest_row(rule, r))} |" for rule, r in rules.items()]
    return "\n".join(lines) + "\n"


FEWEST = ("rule", "setting", "NFE", "accuracy", "p")


def fewest(task: str) -> str:
    """The heading of a table of NFE at equal accuracy."""
    return f"{task}: the fewest passes not significantly below full (* calibrated)"


def fewest_row(rule: str, best: Mapping[str, Any]) -> list[str]:
    """A row of it."""
    select = re.sub(r",calibration=.*", "", best["select"])
    return [rule, select, f"{best['nfe']:.1f}", f"{best['accuracy']:.1f}", f"{best['p']:.2f}"]


def _side_by_side(about: Mapping[str, Any], more: Mapping[str, Any]) -> list[str]:
    """The counts of a divergence, and what each rule wrote where only one is right."""
    printed = about["paper"]
    lines = [differences(more), ""]
    lines += [f"The paper, {printed['model']}: {differences(printed)}"]
    for rule, case in more["alone_right"].items():
        lines += ["", f"## Only {rule} is right"]
        for other, text in {"asked": case["asked"], **case["texts"]}.items():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            lines += ["", f"{other}:", "", f"{fence}text", text, fence]
    return lines


def differences(more: Mapping[str, Any]) -> str:
    """A sentence."""
    return (
        f"Of {more['count']} problems the rules answer {more['texts_differ']} with other words "
        f"and {more['correctness_differs']} with other success."
    )


def show(title: str, found: Sequence[Mapping[str, Any]]) -> None:
    """The table in the terminal."""
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    kept = headings(found)
    for i, heading in kept:
        grid.add_column(heading, justify="left" if i < 5 else "right")
    for row in found:
        grid.add_row(*(columns(row)[i] for i, _ in kept))
    Console(width=max(150, Console().width)).print(grid)
