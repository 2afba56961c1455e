"""`fastdllm tune`: the boldest setting that is not worse than the baseline by more than a target.

The settings are tried from careful to bold, each against the baseline on the same problems, and the
first that fails ends it: so the whole answer is wrong with probability at most `level`, however
many were tried. One is tried problem by problem: with D = 1 where only the baseline is right, -1
where only the setting is, else 0, bets against "the mean of D is more than the target" multiply a
capital of 1. Were that so, it would reach 1 / level with probability at most `level` (Ville), so
one may look after every problem and stop as soon as it does. Bets the other way end a hopeless one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
            f"evidence {self.evidence:8.3g}  {verdict}"
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
    )  # fmt: skip
