"""A calibration: how much more a model's doubts must be than it says, measured on data.

`fastdllm calibrate` decodes, notes how often a token that was reported with doubt d was wrong, and
puts an upper end to that rate in every range of doubts: Clopper-Pearson at `level` / ranges, so
that with probability 1 - level all ranges hold at once, then made to rise with the doubt; ranges
with few tokens are taken together. A rule that is given the file sees `max(d, upper(d))`. What it
says: in the states that were measured, a token of this range is wrong at most that often. What it
does not: the tokens of one answer are counted as if they were drawn apart, and other data has other
rates.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fastdllm.errors import InputError

FORMAT = "fastdllm-calibration-1"
EDGES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Of the ranges of doubt."""
REACH = (1, 2, 3, 5, 9, 17)
"""Where ranges of distance between two positions begin."""


@dataclass(frozen=True)
class Calibration:
    """What was measured, and of which model."""

    path: str
    model: str
    """The fingerprint of its weights."""
    tokenizer: str
    data: str
    """The task and version, or the file; and the fingerprint of the problems."""
    select: str
    """The rule that was decoded by."""
    against: str
    """What counted as right: the reference answer, or the full-step result."""
    level: float
    counts: tuple[int, ...]
    """Tokens in each range of doubt."""
    wrong: tuple[int, ...]
    upper: tuple[float, ...]
    """At most so many of them are wrong, as a share."""
    temperature: float
    """Reported odds to this power's inverse fit best; above 1 is over-confident."""
    reach: tuple[float, ...]
    """How far a marginal moves, as a share of its doubt and in total variation, when the nearest
    token that was committed is so far away: `REACH`."""

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """From its file."""
        try:
            raw: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            if raw.pop("format") != FORMAT:
                raise ValueError(f"the format is not {FORMAT}")
            lists: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()
            }
            lists["path"] = str(path)
            found = cls(**lists)
            if len(found.upper) != len(EDGES) - 1 or len(found.reach) != len(REACH):
                raise ValueError("it has other ranges")
            if not all(0 <= share <= 1 for share in (*found.upper, *found.reach)):
                raise ValueError("a share is not in [0, 1]")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path} is no calibration ({error}); make one with fastdllm calibrate"
            ) from None
        return found

    def save(self) -> None:
        """Write it, whole or not at all."""
        target = Path(self.path)
        values = {k: v for k, v in asdict(self).items() if k != "path"}
        half = target.with_name(target.name + ".part")
        half.write_text(json.dumps({"format": FORMAT, **values}, indent=2) + "\n", encoding="utf-8")
        half.replace(target)

    def raised(self, doubt: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Each doubt, or what was measured of its range if that is more."""
        edges, upper = (t.to(doubt.device) for t in self._table)
        return torch.maximum(doubt, upper[torch.bucketize(doubt, edges)])

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(EDGES[1:-1]), torch.tensor(self.upper)

    def dependence(self, apart: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """The share of a doubt that hangs on a token so many positions away; 0 on itself."""
        table = torch.tensor((0.0, *self.reach), dtype=torch.float64, device=apart.device)
        return table[torch.bucketize(apart, torch.tensor(REACH, device=apart.device), right=True)]

    def check(self, model: str, tokenizer: str) -> None:
        """Complain about another model."""
        for what, mine, other in (
            ("model", self.model, model), ("tokenizer", self.tokenizer, tokenizer),
        ):  # fmt: skip
            if mine != other:
                raise InputError(
                    f"{self.path} was measured on another {what} ({mine}, this one is {other}); "
                    "make one for it with fastdllm calibrate"
                )

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of all but where it lies."""
        told = json.dumps({k: v for k, v in asdict(self).items() if k != "path"}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return self.path
