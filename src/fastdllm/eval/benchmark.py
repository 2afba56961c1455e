"""Benchmarks with a file of their own: where the rows come from, and how they become problems."""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastdllm.errors import InputError
from fastdllm.eval.task import Problem, Task

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Benchmark(Task):
    """A public benchmark: from a local file or folder, or from the hub through `datasets`."""

    files: tuple[str, ...] = field(kw_only=True)
    """Names the problems' file goes by, inside a folder."""
    hub: tuple[str, str | None, str] = field(kw_only=True)
    """Repository, configuration, split."""
    columns: tuple[str, ...] = field(kw_only=True)
    texts: tuple[str, ...] = field(kw_only=True, default=())
    """Those of them that must be texts."""
    shots: int = field(kw_only=True)
    """Worked examples in front of a problem, unless told otherwise."""
    convert: Callable[[Sequence[Raw], Sequence[Raw]], list[Problem]] = field(kw_only=True)
    """From the rows, and the rows shown as examples, to problems."""
    examples: Callable[["Benchmark", Path | None, int], list[Raw]] = field(kw_only=True)
    """The rows to show."""

    def problems(self, data: Path | None = None, shots: int | None = None) -> list[Problem]:
        """All of them, each behind its worked examples."""
        count = self.shots if shots is None else shots
        shown = self.examples(self, data, count) if count else []
        if len(shown) < count:
            raise InputError(
                f"{self.name}: {count} examples were asked for, {len(shown)} are there"
            )
        rows = self.rows(data)
        try:
            found = self.convert(rows, shown)
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise InputError(f"{self.name}: a row is not as it should be: {error}") from None
        if not found:
            raise InputError(f"{self.name}: none of the rows is one of its test problems")
        named = [replace(p, id=p.id or f"{self.name}/{p.key or i}") for i, p in enumerate(found)]
        before: Counter[str] = Counter()
        for i, problem in enumerate(named):  # the same prompt twice is two problems
            before[problem.fingerprint] += 1
            if (times := before[problem.fingerprint]) > 1:
                named[i] = replace(problem, key=f"{problem.key}#{times}")
        return named

    def rows(self, data: Path | None) -> list[Raw]:
        """The benchmark's own rows."""
        return self.read(data, self.files, self.hub[2])

    def read(self, data: Path | None, files: Sequence[str], split: str) -> list[Raw]:
        """A split, from a file, a folder that holds one of the names, or the hub."""
        if data is None:
            return self._from_hub(split)
        path = data
        if path.is_dir():
            found = [path / name for name in files if (path / name).is_file()]
            if not found:
                raise InputError(f"{data} holds none of {', '.join(files)}; name the file itself")
            path = found[0]
        rows = read_rows(path)
        for number, row in enumerate(rows, 1):
            missing = [c for c in self.columns if c not in row]
            if missing:
                raise InputError(
                    f"{path}, row {number}: no column {', '.join(missing)}; is this {self.name}?"
                )
            for column in self.texts:
                if not isinstance(row[column], str):
                    raise InputError(
                        f"{path}, row {number}: {column} is {row[column]!r:.40}; wanted a text"
                    )
        return rows

    def _from_hub(self, split: str) -> list[Raw]:
        try:
            from datasets import load_dataset
        except ModuleNotFoundError:
            raise InputError(
                f"{self.name} is fetched with `datasets`, which is missing; name a local file with "
                "--data, or try: pip install 'fastdllm[eval]'"
            ) from None
        try:
            return list(load_dataset(*self.hub[:2], split=split))
        except Exception as error:  # the library raises many kinds
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"{self.name} could not be fetched from the hub ({reason}); try --data FILE"
            ) from None


def no_examples(task: Benchmark, data: Path | None, count: int) -> list[Raw]:
    """None are ever shown."""
    return []


def read_rows(path: Path) -> list[Raw]:
    """The rows of a JSONL or JSON file, gzipped or not; a bad line is named.

    A JSON object of objects is read as its values.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; give --data a file or a folder") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} is not UTF-8 text, or damaged: {error}") from None
    if text.lstrip().startswith("[") or path.suffix == ".json":
        lines = [(1, text)]
    else:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows: list[Any] = []
    for number, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error})") from None
        if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
            value = list(value.values())
        rows += value if isinstance(value, list) else [value]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} holds no rows; wanted JSON objects, one a line or in a list")
    return rows
