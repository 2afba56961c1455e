"""A trace: what every step of one row did, to keep, to look at and to count from."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastdllm.cache import Range
from fastdllm.denoise import Step
from fastdllm.errors import InputError

FORMAT = "fastdllm-trace-1"


@dataclass(frozen=True)
class Trace:
    """A header and the steps. On disk: a JSON line each."""

    model: str
    select: str
    cache: str
    block_size: int
    canvas: tuple[int, ...]
    """The row before the first step."""
    origin: int
    """Where the generated part begins."""
    mask_id: int
    pieces: dict[int, str]
    """The text of every token that occurs, if there was a tokenizer."""
    steps: tuple[Step, ...]

    @property
    def nfe(self) -> int:
        """One forward pass a step."""
        return len(self.steps)

    def save(self, path: str | Path) -> None:
        """Write it, whole or not at all."""
        head = {k: v for k, v in asdict(self).items() if k != "steps"}
        lines = [{"format": FORMAT, **head}, *(asdict(step) for step in self.steps)]
        target = Path(path)
        half = target.with_name(target.name + ".part")
        half.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        half.replace(target)

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read it back; a bad line is named."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        number = 1
        try:
            head = json.loads(lines[0])
            if head.pop("format") != FORMAT:
                raise ValueError(f"the format is not {FORMAT}")
            steps = []
            for line in lines[1:]:
                number += 1
                steps.append(_step(json.loads(line)))
            head["pieces"] = {int(k): v for k, v in head["pieces"].items()}
            head["canvas"] = tuple(head["canvas"])
            return cls(**head, steps=tuple(steps))
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}, line {number}: not a trace of ours ({error})") from None


def _step(raw: dict[str, Any]) -> Step:
    lists = {k: tuple(raw[k]) for k in ("positions", "tokens", "doubts", "committed")}
    lists |= {k: tuple(raw.get(k, ())) for k in ("raised", "taken_back")}
    return Step(raw["row"], Range(**raw["block"]), Range(**raw["window"]), **lists)
