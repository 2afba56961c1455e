"""`fastdllm calibrate`: decode, hold what was said against the truth, and put an end to its error.

Decoding goes in a rule's own order, so the states are those the rule meets; the true token is put
in whatever was said, so that there is one truth at every step. Every masked position of the block
is noted at every step, committed or not.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.calibration import EDGES, REACH, Calibration
from fastdllm.denoise import Step, denoise
from fastdllm.errors import InputError
from fastdllm.eval.reliability import canvas
from fastdllm.eval.run import ask, pictures
from fastdllm.eval.summary import wilson
from fastdllm.eval.task import GENERATED, Problem, generated, get, with_pictures
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.selection import Frechet, Full, Mask, Profile, Selector
from fastdllm.selection.field import Past, inner_rule, shares
from fastdllm.training.data import read_jsonl


@dataclass(frozen=True)
class Watch(Selector):
    """Another rule's decisions, with a memory of how far every marginal moved."""

    over: Selector = field(default_factory=Frechet, metadata={"read": inner_rule})
    name = "watch"
    remembers = True

    def recall(
        self, past: Past | None, spots: Tensor, logits: Tensor
    ) -> tuple[Tensor, Tensor, Past]:
        """The signal: how far the marginal moved; infinite where it was not seen before."""
        now = shares(logits)
        moved = torch.full(spots.shape, torch.inf, device=logits.device)
        if past is not None:
            index, seen = past.at(spots)
            far = (now.exp() - past.values[index].exp()).abs().sum(dim=-1) / 2
            moved = torch.where(seen, far, torch.inf)
        return logits, moved, Past(spots, now, moved)

    def _accept(self, ranked: Profile) -> Mask:
        return self.over._accept(ranked)


@dataclass(frozen=True)
class Seen:
    """What was said, and whether it was so."""

    doubt: Float[Tensor, " tokens"]
    right: Bool[Tensor, " tokens"]
    moved: Float[Tensor, "moves 3"]
    """How far the nearest commit was, how doubtful the marginal was, and how far it moved."""
    steps: "tuple[Certified, ...]"


@dataclass(frozen=True)
class Certified:
    """A step that the Fréchet bound vouches for: its risk, and whether its tuple was wrong."""

    risk: float
    wrong: bool


def watch(
    llm: LLM,
    problems: Sequence[Problem],
    rule: Selector,
    *,
    against: str = "reference",
    block: int = 32,
    batch: int = 16,
    chat: bool = True,
    stop: tuple[str, ...] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Seen:
    """Decode the problems by a rule, calibrated or not, with the truth put in.

    `chat` and `stop` are those of the task, so that it is asked as an evaluation asks.
    """
    watching = Watch(over=replace(rule, calibration=None), calibration=rule.calibration)
    margin = rule.margin if isinstance(rule, Frechet) else 0.0
    doubts, rights, moves = [], [], [torch.zeros(0, 3)]
    steps: list[Certified] = []
    for start in range(0, len(problems), batch):
        part = problems[start : start + batch]
        if against == "full":
            answers = _full_steps(
                llm, part, Generation(256, block, Full(), "prefix", stop=stop), chat
            )
        else:
            answers = [(None, True)] * len(part)
        pairs = [
            canvas(llm, p, block, number=i, rule=watching, answer=answer, ended=ended, chat=chat)
            for i, (p, (answer, ended)) in enumerate(zip(part, answers, strict=True))
        ]
        rows = [row for row, _ in pairs]
        before: dict[int, Step] = {}
        for step in denoise(llm.reader("none"), rows, llm.forbidden):
            row, truth = pairs[step.row]
            where = torch.tensor(step.positions)
            right = torch.tensor(step.tokens) == truth[where]
            chosen = torch.tensor(step.committed)
            doubts.append(torch.tensor(step.doubts))
            rights.append(right)
            if step.row in before:
                moves.append(_moves(before[step.row], where, row.memory.signal.cpu()))
            before[step.row] = step
            steps += _certified(step, right, chosen, margin)
            row.ids[where[chosen]] = truth[where[chosen]]
        progress(len(part))
    if not doubts:
        raise InputError("there is no problem to measure on; wanted at least one")
    return Seen(torch.cat(doubts), torch.cat(rights), torch.cat(moves), tuple(steps))


def _certified(step: Step, right: Tensor, chosen: Tensor, margin: float) -> Iterator[Certified]:
    """The step, if it was more than the one token that always goes."""
    doubt = torch.tensor(step.raised or step.doubts).double()[chosen]
    if float(doubt.sum() + doubt.max()) < 1 - margin:
        yield Certified(float(doubt.sum()), not bool(right[chosen].all()))


def _moves(
    before: Step, where: Int[Tensor, " spots"], moved: Float[Tensor, " spots"]
) -> Float[Tensor, "moves 3"]:
    """Of every spot that was there before: the nearest of what was then committed, and the rest."""
    made = torch.tensor(list(before.commits))
    doubt = dict(zip(before.positions, before.doubts, strict=True))
    near = (where[:, None] - made).abs().amin(dim=1).float()
    old = torch.tensor([doubt.get(int(p), 0.0) for p in where])
    return torch.stack((near, old, moved), dim=1)[moved.isfinite()]


def _full_steps(
    llm: LLM, problems: Sequence[Problem], settings: Generation, chat: bool
) -> list[tuple[tuple[int, ...] | None, bool]]:
    """What the model itself answers, one token a pass, and whether it came to an end."""
    prompts = [ask(llm, problem, chat) for problem in problems]
    done = llm.generate(prompts, settings, images=pictures(problems))
    return [(one.tokens, one.finish_reason == "stop") for one in done]


# --- Fitting -------------------------------------------------------------------------------------


def fit(
    llm: LLM, seen: Seen, *, path: str, data: str, rule: Selector, against: str, level: float
) -> Calibration:
    """The calibration that these observations support."""
    which = torch.bucketize(seen.doubt, torch.tensor(EDGES[1:-1]))
    ranges = len(EDGES) - 1
    counts = torch.bincount(which, minlength=ranges).tolist()
    wrong = torch.bincount(which, weights=(~seen.right).double(), minlength=ranges).long().tolist()
    ends = [1.0] * ranges
    for group in pooled(counts):
        few, count = sum(wrong[i] for i in group), sum(counts[i] for i in group)
        for i in group:
            ends[i] = clopper_pearson(few, count, level / ranges)
    upper = torch.tensor(ends, dtype=torch.float64).cummax(dim=0).values
    return Calibration(
        path=path,
        model=llm.fingerprint,
        tokenizer=llm.tokenizer.fingerprint if llm.tokenizer else "",
        data=data,
        select=str(rule),
        against=against,
        level=level,
        counts=tuple(counts),
        wrong=tuple(wrong),
        upper=tuple(round(x, 8) for x in upper.tolist()),
        temperature=round(temperature(seen.doubt, seen.right), 4),
        reach=reach(seen.moved),
    )


def pooled(counts: Sequence[int], least: int = 30) -> list[list[int]]:
    """Neighbouring ranges together until each group holds `least` tokens, from the surest on.

    An empty range says nothing, and would raise every doubt above its own.

    >>> pooled([0, 40, 10, 25, 3])
    [[0, 1], [2, 3, 4]]
    """
    groups: list[list[int]] = [[]]
    for i in range(len(counts)):
        if sum(counts[j] for j in groups[-1]) >= least:
            groups.append([])
        groups[-1].append(i)
    if len(groups) > 1 and sum(counts[j] for j in groups[-1]) < least:
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def clopper_pearson(wrong: int, count: int, level: float) -> float:
    """The largest error rate under which so few wrong ones have at least probability `level`.

    >>> round(clopper_pearson(0, 100, 0.05), 4)  # 1 - 0.05 ** (1 / 100)
    0.0295
    """
    if wrong >= count:
        return 1.0
    k = torch.arange(wrong + 1, dtype=torch.float64)
    ways = math.lgamma(count + 1) - torch.lgamma(k + 1) - torch.lgamma(count - k + 1)
    low, high = wrong / count, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        chance = ways + k * math.log(rate) + (count - k) * math.log1p(-rate)
        low, high = (rate, high) if float(chance.logsumexp(0)) > math.log(level) else (low, rate)
    return high


def temperature(doubt: Float[Tensor, " tokens"], right: Bool[Tensor, " tokens"]) -> float:
    """What to divide the log-odds of being right by, for the smallest log loss.

    >>> doubt = torch.full((1000,), 0.1)
    >>> round(temperature(doubt, torch.arange(1000) < 750), 2)  # log 9 / log 3
    2.0
    """
    d = doubt.double().clamp(1e-12, 1 - 1e-12)
    odds = torch.log1p(-d) - torch.log(d)

    def loss(log_t: float) -> float:
        z = odds / math.exp(log_t)
        return float(torch.nn.functional.binary_cross_entropy_with_logits(z, right.double()))

    low, high = math.log(0.05), math.log(20)
    for _ in range(80):
        third = (high - low) / 3
        if loss(low + third) < loss(high - third):
            high -= third
        else:
            low += third
    return math.exp((low + high) / 2)


def reach(moved: Float[Tensor, "moves 3"]) -> tuple[float, ...]:
    """How far a marginal moves, as a share of its doubt, by distance; two standard errors more.

    A range that was not seen is not trusted: 1.

    >>> near, far = [1.0, 0.2, 0.1], [20.0, 0.2, 0.0]
    >>> reach(torch.tensor([near, near, far, far]))
    (0.5, 1.0, 1.0, 1.0, 1.0, 0.0)
    """
    which = torch.bucketize(moved[:, 0].contiguous(), torch.tensor(REACH), right=True) - 1
    ends = []
    for i in range(len(REACH)):
        _, doubt, far = moved[which == i].double().T
        if len(far) < 2 or not float(doubt.sum()):
            ends.append(1.0)
            continue
        share = float(far.sum() / doubt.sum())
        error = float((far - share * doubt).std() / math.sqrt(len(far)) / doubt.mean())
        ends.append(round(min(1.0, share + 2 * error), 6))
    return tuple(ends)


def coverage(steps: Sequence[Certified]) -> dict[str, Any]:
    """Of the steps that were vouched for: how many were wrong, and how many may have been."""
    count, wrong = len(steps), sum(step.wrong for step in steps)
    stated = sum(step.risk for step in steps) / max(1, count)
    return {
        "steps": count,
        "wrong": wrong,
        "interval": [round(x, 5) for x in wilson(wrong, count)],
        "stated": round(stated, 5),
    }


def coverage_text(found: Mapping[str, Any]) -> str:
    """A sentence on fresh problems."""
    if not found["steps"]:
        return "It was not checked: no fresh problem had a step that is certified."
    low, high = found["interval"]
    share = found["wrong"] / found["steps"]
    return (
        f"On fresh problems {found['wrong']} of {found['steps']:,} certified steps differ from the "
        f"truth: {share:.2%} ({low:.2%} .. {high:.2%}), where at most {found['stated']:.2%} was "
        "stated."
    )


def fresh(
    task: str, data: Path | None, count: int, images: Path | None = None
) -> tuple[str, list[Problem]]:
    """Problems to measure on, and what they are called.

    Of a generated task those are training problems, of a benchmark its last ones: an evaluation
    with a limit asks the first.
    """
    if task in GENERATED:
        known = generated(task)
        problems = list(islice(known.stream(seed=len(EDGES)), count))
        return f"{task} v{known.version}, training problems", problems
    if task:
        rows = get(task).problems(data, None)
        last = [with_pictures(p, data, images) for p in rows[-count:]]
        return f"{task}, the last {len(last)} of {len(rows)} problems", last
    if data is None:
        raise InputError("there is nothing to measure on; name a --task, or a file with --data")
    return data.name, read_jsonl(data)[:count]


def fingerprint(problems: Sequence[Problem]) -> str:
    """A short hash of some problems and their answers."""
    told = "".join(p.fingerprint + p.answer for p in problems)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
