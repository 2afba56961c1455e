"""Oracles: denoisers that know the truth, to judge a rule by the rule's own errors alone.

A trained model errs too, and then nobody can say whose error it was. An oracle's conditional
marginals given any evidence are exact, and so is its joint arg-max over any set of positions.
It is called like a model, `oracle(ids) -> logits`, so that everything downstream runs on it; the
mask token is the last of its vocabulary.

    HiddenMarkov   sequences from a hidden Markov model   forward-backward, branch and bound
    JointTable     an explicit table over every tuple     enumeration
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.certificate import certified
from fastdllm.errors import InputError
from fastdllm.predict import predict
from fastdllm.selection import Profile, Selector

Canvas = Int[Tensor, "batch length"]
Row = Int[Tensor, " length"]
Spots = Int[Tensor, " n"]
PerState = Float[Tensor, "batch length states"]


class Oracle(ABC):
    """An exact denoiser over `length` positions and `tokens` tokens."""

    length: int
    tokens: int

    @property
    def mask_id(self) -> int:
        """The id that stands for "not known yet"."""
        return self.tokens

    @abstractmethod
    def marginals(self, ids: Canvas) -> Float[Tensor, "batch length tokens"]:
        """P(X_i = v | evidence) at every position, in float64."""

    @abstractmethod
    def joint_mode(self, ids: Row, positions: Spots) -> Spots:
        """The most probable tuple at masked `positions` given the evidence, all else summed out."""

    def __call__(self, ids: Canvas) -> Float[Tensor, "batch length vocab"]:
        """Log-marginals as logits; the mask token has none."""
        log = self.marginals(ids).log()
        return torch.cat((log, torch.full_like(log[..., :1], -math.inf)), dim=-1)

    def blank(self, count: int = 1) -> Canvas:
        """Canvases of nothing but masks."""
        return torch.full((count, self.length), self.mask_id)

    def probability(self, ids: Row, positions: Spots, tokens: Spots) -> float:
        """P(X_positions = tokens | evidence), by the chain rule."""
        total, ids = 1.0, ids.clone()
        for i, token in zip(positions.tolist(), tokens.tolist(), strict=True):
            total *= float(self.marginals(ids[None])[0, i, token])
            if total == 0:
                return 0.0
            ids[i] = token
        return total

    def sample(self, count: int, generator: torch.Generator) -> Canvas:
        """Sequences drawn from the oracle's own distribution, position by position."""
        ids = self.blank(count)
        for i in range(self.length):
            ids[:, i] = self.marginals(ids)[:, i].multinomial(1, generator=generator)[:, 0]
        return ids


class JointTable(Oracle):
    """A joint distribution given in full: one dimension per position.

    >>> coins = JointTable(torch.tensor([[0.5, 0.0], [0.0, 0.5]]))  # two coins, always alike
    >>> coins.marginals(torch.tensor([[1, 2]]))
    tensor([[[0., 1.],
             [0., 1.]]], dtype=torch.float64)
    """

    def __init__(self, joint: Float[Tensor, "..."]) -> None:
        if len(set(joint.shape)) != 1:
            raise InputError(f"the joint has shape {tuple(joint.shape)}; wanted equal dimensions")
        self.joint = joint.double() / joint.double().sum()
        self.length, self.tokens = joint.ndim, joint.shape[0]

    def _given(self, ids: Row) -> Float[Tensor, "..."]:
        """The joint after the evidence: every other tuple has probability zero."""
        table = torch.zeros_like(self.joint)
        seen = tuple(slice(None) if t == self.mask_id else t for t in ids.tolist())
        table[seen] = self.joint[seen]
        return table / table.sum()

    def marginals(self, ids: Canvas) -> Float[Tensor, "batch length tokens"]:
        """Sum out everything else."""
        rows = [_sum_out(self._given(row), [i]) for row in ids for i in range(self.length)]
        return torch.stack(rows).view(*ids.shape, self.tokens)

    def joint_mode(self, ids: Row, positions: Spots) -> Spots:
        """Look at every tuple."""
        left = _sum_out(self._given(ids), positions.tolist())
        found = torch.unravel_index(left.argmax(), left.shape)
        in_order = torch.stack(found)
        return in_order[positions.argsort().argsort()]


def _sum_out(table: Tensor, keep: list[int]) -> Tensor:
    rest = [j for j in range(table.ndim) if j not in keep]
    return table.sum(dim=rest) if rest else table


class HiddenMarkov(Oracle):
    """Sequences from a hidden Markov model: start, transition and emission probabilities.

    With the identity for the emission it is a plain Markov chain over the tokens.
    """

    def __init__(
        self,
        start: Float[Tensor, " states"],
        transition: Float[Tensor, "states states"],
        emission: Float[Tensor, "states tokens"],
        length: int,
    ) -> None:
        self.start, self.transition, self.emission = (
            p.double() / p.double().sum(dim=-1, keepdim=True) for p in (start, transition, emission)
        )
        self.length, self.tokens = length, emission.shape[-1]

    @classmethod
    def random(
        cls, length: int, *, states: int = 24, tokens: int = 24, seed: int = 0
    ) -> "HiddenMarkov":
        """A model like text: most steps all but follow from the last one, every third is open.

        >>> HiddenMarkov.random(8).sample(2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 8])
        """
        generator = torch.Generator().manual_seed(seed)

        def noise(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        sharpness = torch.where(torch.arange(states) % 3 == 0, 1.0, 12.0)[:, None]
        own_token = 9.0 * torch.eye(states, tokens)
        return cls(
            noise(states).softmax(dim=-1),
            (sharpness * noise(states, states)).softmax(dim=-1),
            (own_token + noise(states, tokens)).softmax(dim=-1),
            length,
        )

    def _evidence(self, ids: Canvas) -> PerState:
        """P(what is seen at i | state): one where nothing is."""
        known = ids != self.mask_id
        return torch.where(known[..., None], self.emission.T[torch.where(known, ids, 0)], 1.0)

    def _from_left(self, evidence: PerState) -> PerState:
        """P(state at i | what is seen before i)."""
        messages = [self.start.expand_as(evidence[:, 0])]
        for i in range(self.length - 1):
            message = (messages[-1] * evidence[:, i]) @ self.transition
            messages.append(message / message.sum(dim=-1, keepdim=True))
        return torch.stack(messages, dim=1)

    def _from_right(self, evidence: PerState) -> PerState:
        """P(what is seen after i | state at i), up to a factor per position."""
        messages = [torch.ones_like(evidence[:, 0])]
        for i in range(self.length - 1, 0, -1):
            message = (messages[-1] * evidence[:, i]) @ self.transition.T
            messages.append(message / message.sum(dim=-1, keepdim=True))
        return torch.stack(messages[::-1], dim=1)

    def marginals(self, ids: Canvas) -> Float[Tensor, "batch length tokens"]:
        """Forward-backward."""
        evidence = self._evidence(ids)
        state = self._from_left(evidence) * evidence * self._from_right(evidence)
        hidden = (state / state.sum(dim=-1, keepdim=True)) @ self.emission
        known = ids != self.mask_id
        seen = torch.eye(self.tokens, dtype=torch.float64)[torch.where(known, ids, 0)]
        return torch.where(known[..., None], seen, hidden)

    def joint_mode(self, ids: Row, positions: Spots) -> Spots:
        """Branch and bound from left to right: a prefix's probability bounds every completion's.

        Exact, and quick: no more than 1/p prefixes can be as probable as the best tuple's p. The
        tuple that takes the best token at every turn gives the first p.
        """
        if len(positions) == 1:
            return self.marginals(ids[None])[0, positions].argmax(dim=-1)
        spots = sorted(positions.tolist())
        _, good = self._search(ids, spots, floor=0.0, width=1)
        mode, _ = self._search(ids, spots, floor=good * (1 - 1e-9), width=None)
        return mode[positions.argsort().argsort()]

    def _search(
        self, ids: Row, spots: list[int], floor: float, width: int | None
    ) -> tuple[Spots, float]:
        """The best tuple among prefixes of probability >= floor, `width` of them at most."""
        evidence = self._evidence(ids[None])
        seen, future = evidence[0], self._from_right(evidence)[0]
        everything = self.start  # P(state, evidence so far), up to a factor
        state = self.start[None]  # the same and a prefix, a row for each
        prefixes = torch.empty(1, 0, dtype=torch.long)
        chance = torch.ones(1, dtype=torch.float64)
        for i in range(spots[-1] + 1):
            if i:
                everything, state = everything @ self.transition, state @ self.transition
            scale = (everything * seen[i]).sum()
            everything, state = everything * seen[i] / scale, state * seen[i] / scale
            if i in spots:
                # Prefix and token; only what stays alive is built.
                grown = state @ (self.emission * future[i][:, None]) / (everything @ future[i])
                alive = grown.flatten().argsort(descending=True)[:width]
                alive = alive[grown.flatten()[alive] >= floor]
                parent, token = alive // self.tokens, alive % self.tokens
                chance = grown[parent, token]
                state = state[parent] * self.emission.T[token]
                prefixes = torch.cat((prefixes[parent], token[:, None]), dim=1)
        return prefixes[0], float(chance[0])


@dataclass(frozen=True)
class Verdict:
    """What a rule did on an oracle. A step is one commit in one sequence."""

    rule: Selector
    tokens: int
    steps: int
    certified: int
    """Steps that the exact certificate vouches for, and so all that Theorem 4.1 does."""
    errors: int
    """Steps whose tuple is not the true joint arg-max."""
    certified_errors: int
    """Both at once: the theorem says none."""

    @property
    def tokens_per_step(self) -> float:
        """What the rule is for."""
        return self.tokens / self.steps


def judge(oracle: Oracle, rule: Selector, ids: Canvas, block_size: int = 32) -> Verdict:
    """Decode `ids` with `rule` on the oracle's exact marginals, and hold each commit to the truth.

    >>> from fastdllm.selection import Full
    >>> oracle = HiddenMarkov.random(8)
    >>> judge(oracle, Full(), oracle.blank())
    Verdict(rule=Full(), tokens=8, steps=8, certified=8, errors=0, certified_errors=0)
    """
    ids = ids.clone()
    tokens = int((ids == oracle.mask_id).sum())
    steps = sound = errors = both = 0
    while (active := _active(ids == oracle.mask_id, block_size)).any():
        profile = predict(
            oracle(ids), active, forbidden=(oracle.mask_id,), entropy=rule.needs_entropy
        )
        committed = rule(profile)
        vouched = certified(profile.doubt.clamp(0, 1), committed, profile.runner_up)
        for i in committed.any(dim=-1).nonzero()[:, 0].tolist():
            wrong = not _is_mode(oracle, ids[i], profile, i, committed[i])
            steps += 1
            sound += bool(vouched[i])
            errors += wrong
            both += wrong and bool(vouched[i])
        ids = torch.where(committed, profile.token, ids)
    return Verdict(rule, tokens, steps, sound, errors, both)


def _active(masked: Bool[Tensor, "batch length"], block_size: int) -> Bool[Tensor, "batch length"]:
    """The masked positions of each row's first unfinished block."""
    block = torch.arange(masked.shape[-1]) // block_size
    first = torch.where(masked, block, masked.shape[-1]).amin(dim=-1, keepdim=True)
    return masked & (block == first)


def _is_mode(
    oracle: Oracle, ids: Row, profile: Profile, row: int, committed: Bool[Tensor, " length"]
) -> bool:
    positions = committed.nonzero()[:, 0]
    return torch.equal(oracle.joint_mode(ids, positions), profile.token[row, positions])
