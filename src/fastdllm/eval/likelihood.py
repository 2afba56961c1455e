"""How likely a text is: the masked bound, by Monte Carlo.

A masked diffusion model has no left-to-right chain rule. What it has is a lower bound on
log p(target | prefix): hide k of the L target tokens, k uniform in 1..L, and weigh the sum of the
hidden tokens' log-probabilities by L/k. Its mean over k and over which are hidden is the bound,
which is tight if all the model's marginals come from one joint distribution.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from fastdllm.denoise import Row
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.selection import Full


def hidden_positions(
    length: int, samples: int, generator: torch.Generator
) -> Bool[Tensor, "samples length"]:
    """Which target tokens each sample hides. The counts are spread evenly over 1..length."""
    start = int(torch.randint(length, (), generator=generator))
    counts = (start + torch.arange(samples) * length // samples) % length + 1
    order = torch.rand(samples, length, generator=generator).argsort(dim=1)
    ranks = order.argsort(dim=1)
    return ranks < counts[:, None]


def bound(
    llm: LLM,
    prefix: Sequence[int],
    target: Sequence[int],
    *,
    samples: int = 128,
    batch: int = 32,
    seed: int = 0,
) -> float:
    """The bound on log p(target | prefix) from so many hidings."""
    if not target:
        return 0.0
    generator = torch.Generator().manual_seed(seed)
    hidden = hidden_positions(len(target), samples, generator)
    total = 0.0
    for part in torch.split(hidden, batch):
        weight = len(target) / part.sum(dim=1)
        total += float((log_probabilities(llm, prefix, target, part) * weight).sum())
    return total / samples


@torch.inference_mode()
def log_probabilities(
    llm: LLM, prefix: Sequence[int], target: Sequence[int], hidden: Bool[Tensor, "samples length"]
) -> Tensor:
    """Of each sample: the sum over its hidden tokens. The mask token is never a candidate."""
    ids = torch.tensor([*prefix, *target]).expand(len(hidden), -1)
    at = F.pad(hidden, (len(prefix), 0))
    noisy = torch.where(at, llm.mask_id, ids)
    rows = [Row(i, noisy[i], at[i], Full(), len(target)) for i in range(len(at))]
    reader = llm.reader("none")
    logits = reader.read(rows, reader.windows(rows), [row.nonzero()[:, 0] for row in at]).float()
    logits[:, llm.mask_id] = -torch.inf
    found = -F.cross_entropy(logits, ids[at].to(logits.device), reduction="none").cpu()
    return found.new_zeros(len(hidden)).index_add(0, at.nonzero()[:, 0], found)


def is_greedy(llm: LLM, prefix: Sequence[int], target: Sequence[int]) -> bool:
    """Whether one token a pass, the surest first, writes exactly the target."""
    size = max(1, len(target))
    settings = Generation(size, size, "full", "none", early_stop=False)
    row = llm.row(list(prefix), settings)
    for _ in llm.run([row], settings):
        pass
    return row.ids[len(prefix) :][: len(target)].tolist() == list(target)
