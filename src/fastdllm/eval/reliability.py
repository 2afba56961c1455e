"""How far a model's confidence is from how often it is right.

Two states matter. On random masks, as in training; and along the model's own order, where it
always speaks where it is surest. In the second the true token is put in whatever was said, so
that there is one truth at every step.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fastdllm.denoise import CachedReader, Row, denoise
from fastdllm.errors import InputError
from fastdllm.eval.run import ask
from fastdllm.eval.task import Problem
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.models.transformer import Transformer
from fastdllm.selection import Full, Selector

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Confidences, and whether each was right."""

    confidence: Float[Tensor, " tokens"]
    right: Bool[Tensor, " tokens"]

    @property
    def error(self) -> float:
        """The expected calibration error over fifteen equal bins.

        >>> sure = torch.full((10,), 0.9)
        >>> round(Reliability(sure, torch.arange(10) < 7).error, 3)
        0.2
        """
        which = (self.confidence * BINS).long().clamp(max=BINS - 1)
        gap = torch.zeros(BINS, dtype=torch.float64)
        gap.index_add_(0, which, self.right.double() - self.confidence.double())
        return float(gap.abs().sum() / len(self.confidence))


def canvas(
    llm: LLM,
    problem: Problem,
    block: int,
    *,
    number: int = 0,
    rule: Selector | None = None,
    answer: Sequence[int] | None = None,
    ended: bool = True,
    chat: bool = True,
) -> tuple[Row, Tensor]:
    """An empty canvas of whole blocks, and the true tokens of all of it.

    The truth is the problem's own answer, if no other is given; ends of text follow one that ended.
    """
    if llm.tokenizer is None or not llm.end_ids:
        raise InputError(f"{llm.name} has no tokenizer or no end of text; calibration needs both")
    answer = llm.tokenizer.encode(problem.answer) if answer is None else answer
    size = (len(answer) // block + 1) * block if ended else max(1, len(answer) // block) * block
    answer = answer[:size]
    settings = Generation(size, block, rule or Full(), "none", early_stop=False)
    row = llm.row(ask(llm, problem, chat), settings, number, images=problem.images)
    truth = row.ids.clone()
    truth[row.origin :] = llm.end_ids[0]
    truth[row.origin : row.origin + len(answer)] = torch.tensor(answer)
    return row, truth


def on_random_masks(
    llm: LLM, problems: Sequence[Problem], block: int = 32, seed: int = 0
) -> Reliability:
    """Every answer masked with probability t ~ U(0, 1), read once."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    reliabilities = []
    for problem in problems:
        row, truth = canvas(llm, problem, block)
        hidden = row.masked & (torch.rand(truth.shape, generator=generator) < rng.random())
        if not hidden.any():
            continue
        noisy = torch.where(hidden, llm.mask_id, truth)
        # One block: all masks are read in one step.
        whole = Row(0, noisy, hidden, Full(), len(truth), picture=row.picture)
        step = next(denoise(_reader(llm), [whole], llm.forbidden))
        right = torch.tensor(step.tokens) == truth[torch.tensor(step.positions)]
        reliabilities.append(Reliability(1 - torch.tensor(step.doubts), right))
    return _join(reliabilities)


def on_own_order(llm: LLM, problems: Sequence[Problem], block: int = 32) -> Reliability:
    """One token a step where the model is surest; the truth goes in, whatever it said."""
    pairs = [canvas(llm, problem, block, number=i) for i, problem in enumerate(problems)]
    rows = [row for row, _ in pairs]
    confidence, right = [], []
    for step in denoise(_reader(llm), rows, llm.forbidden):
        truth = pairs[step.row][1]
        for position, token, doubt, committed in zip(
            step.positions, step.tokens, step.doubts, step.committed, strict=True
        ):
            if committed:
                confidence.append(1 - doubt)
                right.append(token == int(truth[position]))
                rows[step.row].ids[position] = truth[position]
    return Reliability(torch.tensor(confidence), torch.tensor(right))


def _reader(llm: LLM) -> CachedReader:
    if not isinstance(llm.model, Transformer):
        raise InputError(f"{llm.name} is a foreign model; calibration reads checkpoints only")
    return CachedReader(llm.model, "none")


def _join(parts: Sequence[Reliability]) -> Reliability:
    return Reliability(
        torch.cat([p.confidence for p in parts]), torch.cat([p.right for p in parts])
    )
