"""`fastdllm tune`: the boldest setting that is not worse than the baseline by more than a target.

The settings are tried from careful to bold, each against the baseline on the same problems, and the
first that fails ends it: so the whole answer is wrong with probability at most `level`, however
many were tried. One is tried problem by problem: with D = 1 where only the baseline is right, -1
where only the setting is, else 0, bets against "the mean of D is more than the target" multiply a
capital of 1. Were that so, it would reach 1 / level with probability at most `level` (Ville), so
one may look after every problem and stop as soon as it does. Bets the other way end a hopeless one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastdllm.eval.run import Sheet, run
from fastdllm.eval.summary import Summary
from fastdllm.eval.task import Problem, Task
from fastdllm.llm import LLM

BETS = tuple(k / 10 for k in range(1, 10))


class Wager:
    """Capital from betting against "the mean drop is more than `target`", or that it is less.

    >>> wager = Wager(0.1)
    >>> for _ in range(60):
    ...     wager.see(0)
    >>> wager.safe > 20
    True
    """

    def __init__(self, target: float) -> None:
        self.target = target
        self._safe, self._worse = [1.0] * len(BETS), [1.0] * len(BETS)

    def see(self, drop: int) -> None:
        """One problem: 1, 0 or -1."""
        gain = self.target - drop
        for k, bet in enumerate(BETS):  # a bet that cannot lose more than it has
            self._safe[k] *= 1 + bet * gain / (1 - self.target)
            self._worse[k] *= 1 - bet * gain / (1 + self.target)

    @property
    def safe(self) -> float:
        """The evidence that the drop is within the target."""
        return sum(self._safe) / len(BETS)

    @property
    def worse(self) -> float:
        """The evidence that it is not."""
        return sum(self._worse) / len(BETS)


def needed(target: float, level: float) -> int:
    """How many problems show the target if every one is answered alike.

    >>> needed(0.1, 0.05)
    45
    """
    wager, count = Wager(target), 0
    while wager.safe < 1 / level:
        wager.see(0)
        count += 1
    return count


GRID = tuple(k / 400 for k in range(-200, 201))
"""Mean drops an interval is made of: -50 to 50 points, every quarter of one."""


def interval(drops: Sequence[int], level: float) -> tuple[float, float]:
    """The mean drops that no bet speaks against, however often one looked.

    >>> interval([0] * 400, 0.05)
    (-0.0125, 0.0125)
    """
    seen = torch.tensor(drops, dtype=torch.float64)
    kept = []
    for target in GRID:
        gain, bets = target - seen, torch.tensor(BETS, dtype=torch.float64)[:, None]
        capital = [
            torch.log1p(bets * sign * gain / (1 - sign * target)).sum(dim=1).logsumexp(dim=0)
            for sign in (1, -1)
        ]
        if max(float(c) for c in capital) - math.log(len(BETS)) < math.log(2 / level):
            kept.append(target)
    return min(kept, default=0.0), max(kept, default=0.0)


@dataclass(frozen=True)
class Trial:
    """A setting against the baseline."""

    select: str
    count: int
    accuracy: float
    baseline: float
    nfe: float
    baseline_nfe: float
    evidence: float
    passed: bool
    interval: tuple[float, float]
    """Of the drop, as a share; both ends hold with probability 1 - level."""

    @property
    def saved(self) -> float:
        """The share of forward passes it does without."""
        return 1 - self.nfe / self.baseline_nfe if self.baseline_nfe else 0.0

    def __str__(self) -> str:
        """A line."""
        verdict = "passed" if self.passed else "not shown"
        return (
            f"{self.select:18} {self.count:5} problems  {self.accuracy:6.1%} against "
            f"{self.baseline:6.1%}  NFE {self.nfe:5.1f} ({self.saved:.0%} less)  "
            f"evidence {self.evidence:8.3g}  {verdict}; drop {100 * self.interval[0]:.1f} to "
            f"{100 * self.interval[1]:.1f} points"
        )


def tune(
    llm: LLM,
    task: Task,
    problems: Sequence[Problem],
    baseline: Sheet,
    candidates: Iterable[Sheet],
    *,
    target: float,
    level: float,
    batch: int,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Iterator[Trial]:
    """A trial for each candidate, from careful to bold, until one fails."""
    for sheet in candidates:
        wager = Wager(target)
        seen: list[Mapping[str, Any]] = []
        theirs: list[Mapping[str, Any]] = []
        for start in range(0, len(problems), batch):
            part = problems[start : start + batch]
            for _ in run(llm, task, part, [baseline, sheet], batch):
                pass
            for problem in part:
                one, other = (s.lines[problem.fingerprint] for s in (baseline, sheet))
                wager.see(int(one["right"]) - int(other["right"]))
                theirs.append(one)
                seen.append(other)
            tell(_trial(sheet, seen, theirs, wager, level))
            if wager.safe >= 1 / level or wager.worse >= 1 / level:
                break
        trial = _trial(sheet, seen, theirs, wager, level)
        yield trial
        if not trial.passed:
            return


def _trial(
    sheet: Sheet,
    mine: Sequence[Mapping[str, Any]],
    theirs: Sequence[Mapping[str, Any]],
    wager: Wager,
    level: float,
) -> Trial:
    s, b = Summary.of(mine), Summary.of(theirs)
    return Trial(
        str(sheet.settings.rule), s.count, s.accuracy, b.accuracy, s.mean_nfe, b.mean_nfe,
        wager.safe, wager.safe >= 1 / level,
        interval([a["right"] - b["right"] for a, b in zip(theirs, mine, strict=True)], level),
    )  # fmt: skip
