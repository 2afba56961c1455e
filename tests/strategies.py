"""What the tests draw from: confidence profiles as decoders have them, and hostile joints."""

import torch
from hypothesis import strategies as st
from torch import Tensor

# Near-certain, middling and hopeless positions, with many exact ties.
confidences = st.one_of(
    st.floats(0.0, 1.0, width=32),
    st.floats(0.875, 1.0, width=32),
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]),
)
margins = st.one_of(st.floats(0.0, 0.99), st.sampled_from([0.0, 0.25, 0.5]))
seeds = st.integers(0, 2**32 - 1)


def profiles(low: int = 1, high: int = 12) -> st.SearchStrategy[Tensor]:
    return st.lists(confidences, min_size=low, max_size=high).map(
        lambda c: torch.tensor(c, dtype=torch.float64)
    )


def random_joint(seed: int) -> Tensor:
    """A joint over 1 to 4 positions of 2 or 3 tokens; half of them sharply peaked."""
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 5, (), generator=g))
    v = int(torch.randint(2, 4, (), generator=g))
    sharp = float(torch.rand((), generator=g)) * 8
    table = (sharp * torch.randn((v,) * n, generator=g, dtype=torch.float64)).exp()
    return table / table.sum()


def hostile_joint(seed: int) -> Tensor:
    """Given doubts, the dependence that hurts most.

    Disjoint errors (at most one position wrong), comonotone (all wrong together), antithetic
    (some wrong exactly when the others are right).
    """
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(2, 5, (), generator=g))
    v = int(torch.randint(2, 4, (), generator=g))
    kind = int(torch.randint(0, 3, (), generator=g))
    budget = float(torch.rand((), generator=g)) * 1.1
    d = torch.rand(n, generator=g, dtype=torch.float64)
    d = (d / d.sum() * budget).clamp(max=0.95)
    joint = torch.zeros((v,) * n, dtype=torch.float64)
    if kind == 0:
        for k in range(n):
            at = [0] * n
            for token in range(1, v):
                at[k] = token
                joint[tuple(at)] = d[k] / (v - 1) if token > 1 else d[k] * (1 if v == 2 else 0.5)
    elif kind == 1:
        last = 0.0
        order = d.argsort(descending=True).tolist()
        for rank in range(n, 0, -1):  # the `rank` most doubtful positions are wrong together
            at = [0] * n
            for i in order[:rank]:
                at[i] = 1
            joint[tuple(at)] = float(d[order[rank - 1]]) - last
            last = float(d[order[rank - 1]])
    else:
        half = [1 if i % 2 else 0 for i in range(n)]
        joint[tuple(half)] = min(float(d[1::2].max()), 0.6)
        joint[tuple(1 - h for h in half)] = min(float(d[0::2].max()), 0.39)
    joint.view(-1)[0] = max(0.0, 1 - float(joint.sum()) + float(joint.view(-1)[0]))
    return joint / joint.sum()


joints = st.one_of(seeds.map(random_joint), seeds.map(hostile_joint))


def marginals(joint: Tensor) -> Tensor:
    """Naive: one sum per position and token."""
    n, v = joint.ndim, joint.shape[0]
    return torch.stack(
        [torch.stack([joint.select(k, token).sum() for token in range(v)]) for k in range(n)]
    )


def top_two(joint: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Doubts, runners-up and the greedy tuple."""
    two = marginals(joint).clamp(0, 1).topk(2)
    doubt = (1 - two.values[:, 0]).clamp(0, 1)
    return doubt, two.values[:, 1], tuple(two.indices[:, 0].tolist())
