"""A folder of `eval`, `sweep` or `reproduce` as one page: tables, figures, settings, machine.

The page loads nothing from anywhere, and prints on paper as it looks on the screen.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastdllm.bench import reproduce
from fastdllm.errors import InputError
from fastdllm.eval.run import Line, read_lines
from fastdllm.eval.summary import Summary, mcnemar

Lines = dict[str, Line]
TEXT = {"task", "cache", "rule"}  # columns that are words
RUN_COLUMNS = (
    "rule", "cache", "len", "block", "problems", "accuracy", "95 %", "p", "NFE", "less", "tok/NFE",
    "tok/s", "speed-up",
)  # fmt: skip


def write(folder: Path) -> Path:
    """report.html in the folder, whole or not at all."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; wanted the --output of a run")
    experiments = _experiments(folder)
    runs = sorted(path.parent for path in folder.glob("**/run.json"))
    if not experiments and not runs:
        raise InputError(f"{folder} holds no run; wanted the --output of eval, sweep or reproduce")
    sections = [_experiment(about, folder) for about in experiments]
    sections += [_run(run, folder) for run in runs]
    names = [about["experiment"] for about in experiments] + [_name(run, folder) for run in runs]
    links = "".join(f'<a href="#{escape(n)}">{escape(n)}</a>' for n in names)
    body = "\n".join([f"<nav>{links}</nav>", *sections])
    page = files("fastdllm.bench").joinpath("report.html").read_text(encoding="utf-8")
    title = f"Fast-dLLM++: {folder.resolve().name}"
    page = page.replace("__TITLE__", escape(title)).replace("__BODY__", body)
    path = folder / "report.html"
    half = path.with_suffix(".part")
    half.write_text(page, encoding="utf-8")
    half.replace(path)
    return path


# --- Sections ----------------------------------------------------------------------------------


def _experiments(folder: Path) -> list[dict[str, Any]]:
    """What `reproduce` wrote, in the paper's order."""
    found = []
    for name in reproduce.EXPERIMENTS:
        path = folder / f"{name}.json"
        if path.exists():
            try:
                about = json.loads(path.read_text(encoding="utf-8"))
                reproduce.caption(about, about["rows"])
                [reproduce.columns(row) for row in about["rows"]]
                if about["experiment"] != name:
                    raise ValueError
            except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                raise InputError(f"{path} is not one of ours; write it anew") from None
            found.append(about)
    return found


def _experiment(about: Mapping[str, Any], folder: Path) -> str:
    name, rows = about["experiment"], about["rows"]
    kept = reproduce.headings(rows)
    table = _table(
        [heading for _, heading in kept],
        [[reproduce.columns(row)[i] for i, _ in kept] for row in rows],
        [str(row["select"]).startswith("frechet") for row in rows],
    )
    more = ""
    if "alone_right" in about:
        printed = about["paper"]
        sentence = f"The paper, {printed['model']}: {reproduce.differences(printed)}"
        more = _paragraph(reproduce.differences(about)) + _paragraph(sentence)
        more += "".join(map(_side_by_side, about["alone_right"].items()))
    for task, rules in about.get("equal_accuracy", {}).items():
        more += f"<h3>{escape(reproduce.fewest(task))}</h3>"
        more += _table(
            list(reproduce.FEWEST),
            [reproduce.fewest_row(rule, r) for rule, r in rules.items()],
            [rule in ("frechet", "local", "stable*") for rule in rules],
        )
    told = _paragraph(" ".join(reproduce.caption(about, rows)))
    return _section(name, told + _figure(folder / f"{name}.svg", name) + table + more, long=True)


def _side_by_side(case: tuple[str, Mapping[str, Any]]) -> str:
    rule, about = case
    boxes = "".join(
        f"<div>{escape(other)}<pre>{escape(text)}</pre></div>"
        for other, text in about["texts"].items()
    )
    head = f"<h3>Only {escape(rule)} is right</h3>{_paragraph(about['asked'])}"
    return f'{head}<div class="side">{boxes}</div>'


def _run(run: Path, folder: Path) -> str:
    """The fold over the answers of one task, against the first of full, threshold or any rule."""
    try:
        about = json.loads((run / "run.json").read_text(encoding="utf-8"))
        [about[key] for key in ("model", "task", "version", "machine", "date")]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{run / 'run.json'} is damaged; move the folder away") from None
    sheets = _sheets(run)
    if not sheets:
        return _section(_name(run, folder), _paragraph("No answer yet."))
    bases: dict[tuple[int, int], Lines] = {}
    for settings, lines in sheets:
        bases.setdefault((settings["max_tokens"], settings["block_size"]), lines)
    rows = [
        _row(settings, lines, bases[settings["max_tokens"], settings["block_size"]])
        for settings, lines in sheets
    ]
    ours = [str(settings["select"]).startswith("frechet") for settings, _ in sheets]
    told = (
        f"{about['model']} on {about['task']} (version {about['version']}"
        + (f", {about['shots']} shots" if about.get("shots") is not None else "")
        + f"), {about['machine']}, {about['date']}; compared with the first row of the same canvas "
        "on the problems both answered, p is McNemar's exact test."
    )
    common = _common([settings for settings, _ in sheets])
    figure = _figure(run / "fig-frontier.svg", "frontier") if run == folder else ""
    figure += _areas(run / "sweep.json")
    return _section(
        _name(run, folder), _paragraph(told) + _paragraph(common) + figure
        + _table(RUN_COLUMNS, rows, ours), long=len(rows) > 20,
    )  # fmt: skip


def _areas(path: Path) -> str:
    """The areas under a sweep's frontiers."""
    if not path.exists():
        return ""
    try:
        areas = json.loads(path.read_text(encoding="utf-8"))["areas"]
        rows = [[rule, f"{a['nfe']:.3f}", f"{a['seconds']:.3f}"] for rule, a in areas.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is not one of ours; run the sweep again") from None
    told = "Area under the frontier: the mean accuracy over all budgets up to the dearest point's."
    head = ["rule", "over passes", "over time a token"]
    return _paragraph(told) + _table(head, rows, [row[0] == "frechet" for row in rows])


def _name(run: Path, folder: Path) -> str:
    return f"run {run.relative_to(folder)}" if run != folder else "run"


def _sheets(run: Path) -> list[tuple[dict[str, Any], Lines]]:
    """The lines of each setting, shares of several processes together; the baseline first."""
    found: dict[str, tuple[dict[str, Any], Lines]] = {}
    for path in sorted(run.glob("*.jsonl")):
        for line in read_lines(path):
            settings = line["settings"]
            numbers = (line["tokens"], line["nfe"], line["seconds"], line["right"])
            if (
                not isinstance(settings, dict)
                or not {"select", "cache", "max_tokens", "block_size"} <= settings.keys()
                or not all(isinstance(n, int | float) for n in numbers)
            ):
                raise InputError(f"{path} holds lines that are not ours; move it away")
            key = json.dumps(settings, sort_keys=True)
            found.setdefault(key, (settings, {}))[1][line["prompt"]] = line
    order = ("full", "threshold")

    def place(one: tuple[dict[str, Any], Lines]) -> tuple[Any, ...]:
        rule, _, value = str(one[0]["select"]).partition(":")
        first = order.index(rule) if rule in order else len(order)
        return one[0]["max_tokens"], one[0]["block_size"], first, rule, value, one[0]["cache"]

    return sorted(found.values(), key=place)


def _row(settings: Mapping[str, Any], lines: Lines, base: Lines) -> list[str]:
    """A setting's own answers; what is compared, on the problems that the baseline answered too."""
    both = lines.keys() & base.keys()
    s, mine = Summary.of(lines.values()), Summary.of(lines[i] for i in both)
    b = Summary.of(base[i] for i in both)
    low, high = s.interval
    return [
        settings["select"], settings["cache"], str(settings["max_tokens"]),
        str(settings["block_size"]), str(s.count), f"{s.accuracy:.1%}",
        f"{100 * low:.0f}-{100 * high:.0f}",
        f"{mcnemar(base, lines)[2]:.2f}" if both and lines is not base else "",
        f"{s.mean_nfe:.1f}",
        f"{1 - mine.mean_nfe / b.mean_nfe:.0%}" if b.nfe else "", f"{s.tokens_per_nfe:.2f}",
        f"{s.tokens_per_second:,.0f}",
        f"{mine.tokens_per_second / b.tokens_per_second:.2f}x" if b.tokens_per_second else "",
    ]  # fmt: skip


def _common(settings: Sequence[Mapping[str, Any]]) -> str:
    """What all settings share and the table does not show."""
    shown = {"select", "cache", "max_tokens", "block_size"}
    same = {
        key: value
        for key, value in settings[0].items()
        if key not in shown and all(other.get(key) == value for other in settings)
    }
    return "Settings: " + ", ".join(f"{k} {json.dumps(v)}" for k, v in same.items()) + "."


# --- Pieces of a page --------------------------------------------------------------------------


def _section(name: str, inside: str, long: bool = False) -> str:
    kind = ' class="long"' if long else ""
    return f'<section id="{escape(name)}"{kind}><h2>{escape(name)}</h2>{inside}</section>'


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], ours: Sequence[bool]) -> str:
    kinds = [' class="text"' if name in TEXT else "" for name in names]
    head = "".join(f"<th{kind}>{escape(n)}</th>" for n, kind in zip(names, kinds, strict=True))
    body = ""
    for row, own in zip(rows, ours, strict=True):
        cells = "".join(f"<td{k}>{escape(c)}</td>" for c, k in zip(row, kinds, strict=True))
        body += f'<tr class="ours">{cells}</tr>' if own else f"<tr>{cells}</tr>"
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>'


def _figure(path: Path, name: str) -> str:
    """As an image of its own, so that two drawings cannot share their inner names."""
    if not path.exists():
        return ""
    data = b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{escape(name)}" src="data:image/svg+xml;base64,{data}"></figure>'
