"""From lines to figures: accuracy with its interval, passes, speed, and paired tests."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """A fold over lines."""

    count: int
    right: int
    nfe: int
    tokens: int
    seconds: float

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> "Summary":
        """Add them up."""
        rows = list(lines)
        return cls(
            len(rows),
            sum(bool(row["right"]) for row in rows),
            sum(row["nfe"] for row in rows),
            sum(row["tokens"] for row in rows),
            sum(row["seconds"] for row in rows),
        )

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return self.right / self.count if self.count else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy lies with 95 % confidence."""
        return wilson(self.right, self.count)

    @property
    def mean_nfe(self) -> float:
        """Forward passes of a problem."""
        return self.nfe / self.count if self.count else 0.0

    @property
    def tokens_per_nfe(self) -> float:
        """Tokens up to the end of text over forward passes."""
        return self.tokens / self.nfe if self.nfe else 0.0

    @property
    def tokens_per_second(self) -> float:
        """As the caller of a batch sees it."""
        return self.tokens / self.seconds if self.seconds else 0.0


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval for a share.

    >>> [round(x, 3) for x in wilson(90, 100)]
    [0.826, 0.945]
    """
    if not count:
        return 0.0, 1.0
    share, n = right / count, count
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[int, int, float]:
    """How many problems only one, and only the other, solves; and the exact two-sided p-value.

    Both map a problem's id to its line; problems that only one has are left out.

    >>> a = {str(i): {"right": i < 9} for i in range(10)}
    >>> b = {str(i): {"right": i < 2} for i in range(10)}
    >>> mcnemar(a, b)
    (7, 0, 0.015625)
    """
    shared = one.keys() & other.keys()
    only_one = sum(one[i]["right"] and not other[i]["right"] for i in shared)
    only_other = sum(other[i]["right"] and not one[i]["right"] for i in shared)
    n, k = only_one + only_other, min(only_one, only_other)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return only_one, only_other, min(1.0, 2 * tail)
