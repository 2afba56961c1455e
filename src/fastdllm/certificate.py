"""The mathematics of the paper: when may several masked tokens be committed together?

Every function is pure and works on doubts `d = 1 - c`, one per candidate position, in the last
dimension and in any order. The doubts are sorted here, and the answer holds one value for every
prefix n = 1 .. m of the sorted profile (the n most confident positions). Doubts rather than
confidences, because `sum(c) - (n - 1)` subtracts near-equal numbers and `1 - sum(d)` does not.

`docs/theory.md` maps every statement of the paper to its function here and to its test.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fastdllm.errors import InputError

PerPosition = Float[Tensor, "*rows positions"]
"""Doubts, or another value per position."""
Eta = float | Float[Tensor, "#*rows #positions"]
"""A calibration allowance: one for all positions, or one each."""


def doubts(confidence: PerPosition) -> PerPosition:
    """The doubts `1 - c`, after a check that each confidence is a probability.

    >>> doubts(torch.tensor([1.0, 0.75]))
    tensor([0.0000, 0.2500])
    """
    return 1 - check_probabilities("confidence", confidence)


def check_probabilities(name: str, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`values` unchanged, or an error that names the first one outside [0, 1]."""
    outside = ~((values >= 0) & (values <= 1))  # written so that NaN is outside too
    if outside.any():
        where = tuple(outside.nonzero()[0].tolist())
        raise InputError(
            f"{name} at {where} is {values[where].item():.6g}; wanted 0 <= {name} <= 1"
        )
    return values


def check_like(
    name: str, values: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None
) -> None:
    """An error unless `values` has this shape, and this dtype if one is wanted."""
    if tuple(values.shape) != tuple(shape):
        raise InputError(f"{name} has shape {tuple(values.shape)}; wanted {tuple(shape)}")
    if dtype is not None and values.dtype != dtype:
        raise InputError(f"{name} is {values.dtype}; wanted {dtype}")


def _ascending(doubt: PerPosition, eta: Eta = 0.0) -> PerPosition:
    """Sorted doubts, after the allowance: c_low = max(0, c - eta) is d = min(1, d + eta)."""
    check_probabilities("doubt", doubt)
    check_probabilities("eta", torch.as_tensor(eta, dtype=doubt.dtype, device=doubt.device))
    return (doubt + eta).clamp(max=1).sort(dim=-1, stable=True).values


def _ranks(profile: PerPosition) -> Float[Tensor, " positions"]:
    """n = 1 .. m."""
    return torch.arange(1, profile.shape[-1] + 1, dtype=profile.dtype, device=profile.device)


# --- Marginal-only certificates: Section 3 and Theorem 4.1 ---------------------------------------


def lower_bound(doubt: PerPosition, eta: Eta = 0.0) -> PerPosition:
    """L_n, the Fréchet lower bound on the probability that all n tokens are right together.

    Section 3 and Lemma A.1 (Fréchet-Bonferroni); with `eta`, L_eta of Proposition C.1.

    >>> lower_bound(torch.tensor([0.01, 0.1, 0.3]))
    tensor([0.9900, 0.8900, 0.5900])
    >>> lower_bound(torch.tensor([0.01, 0.1, 0.3]), eta=0.1)
    tensor([0.8900, 0.6900, 0.2900])
    """
    return (1 - _ascending(doubt, eta).cumsum(dim=-1)).clamp(min=0)


def competitor_bound(doubt: PerPosition, eta: Eta = 0.0) -> PerPosition:
    """U_n, the bound on the probability of any tuple but the greedy one: the largest doubt.

    Section 3; with `eta`, U_eta of Proposition C.1.

    >>> competitor_bound(torch.tensor([0.3, 0.01, 0.1]))
    tensor([0.0100, 0.1000, 0.3000])
    """
    return _ascending(doubt, eta)


def score(doubt: PerPosition, eta: Eta = 0.0) -> PerPosition:
    """G_n = L_n - U_n: positive means that the greedy tuple is the unique joint mode.

    Theorem 4.1 (heterogeneous-confidence greedy equivalence); with `eta`, G_n^(eta) of
    Proposition C.1 (calibration-robust Fréchet certificate).

    >>> score(torch.tensor([0.01, 0.1, 0.3]))
    tensor([0.9800, 0.7900, 0.2900])
    """
    return lower_bound(doubt, eta) - competitor_bound(doubt, eta)


def certified(
    doubt: PerPosition,
    committed: Bool[Tensor, "*rows positions"],
    runner_up: PerPosition | None = None,
) -> Bool[Tensor, "*rows"]:
    """Whether what each row commits is surely the joint mode, whatever rule chose it.

    By Theorem 4.1, L(S) > U(S); given the runners-up, by the exact certificate L(S) > max p2.

    >>> certified(torch.tensor([0.01, 0.1, 0.9]), torch.tensor([True, True, False]))
    tensor(True)
    """
    check_like("committed", committed, doubt.shape, torch.bool)
    chosen = torch.where(committed, check_probabilities("doubt", doubt), 0)
    rival = chosen
    if runner_up is not None:
        check_like("runner-up", runner_up, doubt.shape)
        rival = torch.where(committed, check_probabilities("runner-up", runner_up), 0)
    nothing = rival.new_zeros((*rival.shape[:-1], 1))  # so that an empty row has a maximum
    return 1 - chosen.sum(dim=-1) > torch.cat((rival, nothing), dim=-1).amax(dim=-1)


# --- Fréchet against factor: Corollary 4.2, Proposition 4.3, Corollary 4.4, Remark 4.5 -----------


def factor_core(doubt: PerPosition) -> PerPosition:
    """F_n = (n+1) c_(n) - n: the score of a flat profile as weak as the n-th token.

    Proposition 4.3 (heterogeneity bonus); factor decoding accepts n when F_n > 1 - f.

    >>> factor_core(torch.tensor([0.01, 0.1, 0.3]))
    tensor([ 0.9800,  0.7000, -0.2000])
    """
    d = _ascending(doubt)
    return 1 - (_ranks(d) + 1) * d


def bonus(doubt: PerPosition) -> PerPosition:
    """B_n, the heterogeneity bonus: what the stronger tokens add, and factor throws away.

    Proposition 4.3 (heterogeneity bonus): G_n = F_n + B_n wherever L_n > 0. Summed from the steps
    between neighbours, so that it is never negative and exactly zero on a flat profile.

    >>> bonus(torch.tensor([0.01, 0.1, 0.3]))
    tensor([0.0000, 0.0900, 0.4900])
    """
    d = _ascending(doubt)
    step = torch.diff(d, dim=-1, prepend=d[..., :1])
    return ((_ranks(d) - 1) * step).cumsum(dim=-1)


def effective_factor(doubt: PerPosition, margin: float) -> PerPosition:
    """f_eff(n) = 1 - delta + B_n: Fréchet is factor decoding with this factor.

    Remark 4.5 (adaptive-factor interpretation).

    >>> effective_factor(torch.tensor([0.01, 0.1, 0.3]), margin=0.25)
    tensor([0.7500, 0.8400, 1.2400])
    """
    if not 0 <= margin < 1:
        raise InputError(f"margin is {margin!r}; wanted a number in [0, 1)")
    return 1 - margin + bonus(doubt)


def calibration_penalty(size: int, eta: float) -> float:
    """(n+1) eta, what a uniform calibration error costs a commit of n tokens.

    Corollary C.2 (calibration penalty): G_n^(eta) = G_n - (n+1) eta while nothing is clipped.

    >>> calibration_penalty(4, eta=0.02)
    0.1
    """
    if size < 1 or not 0 <= eta <= 1:
        raise InputError(f"size is {size!r}, eta {eta!r}; wanted size >= 1 and 0 <= eta <= 1")
    return (size + 1) * eta


# --- Beyond the paper: the exact certificate of the two best tokens -----------------------------


def top2_score(doubt: PerPosition, runner_up: PerPosition) -> PerPosition:
    """L_n - max p2: the exact worst-case mode gap, for every prefix by confidence.

    A tuple that differs from the greedy one at k has probability at most p2_k, the runner-up's;
    disjoint errors attain L_n and every p2_k at once. So among all joints with these marginals the
    greedy tuple is always the unique mode if and only if this is positive. As p2 <= d it is never
    below G_n.

    >>> top2_score(torch.tensor([0.1, 0.3, 0.4]), torch.tensor([0.05, 0.1, 0.1]))
    tensor([0.8500, 0.5000, 0.1000])
    >>> score(torch.tensor([0.1, 0.3, 0.4]))
    tensor([ 0.8000,  0.3000, -0.2000])
    """
    check_like("runner-up", runner_up, doubt.shape)
    check_probabilities("runner-up", runner_up)
    order = doubt.argsort(dim=-1, stable=True)
    return lower_bound(doubt) - runner_up.gather(-1, order).cummax(dim=-1).values


# --- Dependence-aware extensions: Lemma 4.6, Corollary 4.7 ---------------------------------------


def mode_gap(doubt: PerPosition, runner_up: PerPosition) -> Float[Tensor, "*rows"]:
    """Delta_Q, how far the product of the marginals puts its mode above the next tuple.

    Section 4.2, in Lemma 4.6. The next tuple takes one runner-up, where that costs least.

    >>> mode_gap(torch.tensor([0.1, 0.2]), torch.tensor([0.1, 0.2]))
    tensor(0.5400)
    """
    check_like("runner-up", runner_up, doubt.shape)
    check_probabilities("runner-up", runner_up)
    c = 1 - check_probabilities("doubt", doubt)
    # Q(x*) less the same with one factor c replaced by its p2: the product of all the others.
    share = torch.where(c > 0, runner_up / c, 1)
    return c.prod(dim=-1) * (1 - share.amax(dim=-1))


def tv_stable(tv: Float[Tensor, "*rows"], gap: Float[Tensor, "*rows"]) -> Bool[Tensor, "*rows"]:
    """Whether the product's mode is the joint's mode: d_TV(P, Q) < Delta_Q / 2.

    Lemma 4.6 (mode stability under total variation).

    >>> tv_stable(torch.tensor(0.2), torch.tensor(0.54))
    tensor(True)
    """
    return tv < gap / 2


def kl_stable(kl: Float[Tensor, "*rows"], gap: Float[Tensor, "*rows"]) -> Bool[Tensor, "*rows"]:
    """Whether the product's mode is the joint's mode: D_KL(P || Q) < Delta_Q^2 / 2, Delta_Q > 0.

    Corollary 4.7 (mode stability under KL divergence).

    >>> kl_stable(torch.tensor(0.2), torch.tensor(0.54))
    tensor(False)
    """
    return (gap > 0) & (kl < gap.square() / 2)


Joint = Float[Tensor, "..."]
"""An explicit joint distribution: a dimension per position, an entry per tuple of tokens."""


def product_of_marginals(joint: Joint) -> Joint:
    """Q_S, what a parallel decoder believes (Section 2).

    >>> product_of_marginals(torch.tensor([[0.5, 0.0], [0.0, 0.5]]))
    tensor([[0.2500, 0.2500],
            [0.2500, 0.2500]])
    """
    n = joint.ndim
    product = torch.ones_like(joint)
    for k in range(n):
        others = tuple(j for j in range(n) if j != k)
        product = product * (joint.sum(dim=others, keepdim=True) if others else joint)
    return product


def total_variation(p: Joint, q: Joint) -> Float[Tensor, ""]:
    """d_TV(P, Q), half the summed differences.

    >>> total_variation(torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1]))
    tensor(0.4000)
    """
    check_like("q", q, p.shape)
    return (p - q).abs().sum() / 2


def total_correlation(joint: Joint) -> Float[Tensor, ""]:
    """D_KL(P || product of its marginals), in nats: the residual dependence of the positions.

    Section 4.2: this is the divergence that Corollary 4.7 asks for.

    >>> total_correlation(torch.tensor([[0.5, 0.0], [0.0, 0.5]]))
    tensor(0.6931)
    """
    total = float(joint.sum())
    if not abs(total - 1) < 1e-4 or bool((joint < 0).any()):
        raise InputError(f"the joint sums to {total:.6g}; wanted probabilities that sum to 1")
    ratio = torch.where(joint > 0, joint / product_of_marginals(joint), 1)
    return (joint * ratio.log()).sum()
