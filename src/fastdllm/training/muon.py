"""Muon: momentum whose matrices are made orthogonal before the step.

torch.optim.Muon does the same in bfloat16, which a CPU without such instructions emulates slowly.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fastdllm.team import Team

# Keller Jordan's quintic: five rounds bring all singular values near 1.
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonal(x: Float[Tensor, "count rows columns"]) -> Float[Tensor, "count rows columns"]:
    """The nearest matrices with singular values near 1, by Newton-Schulz."""
    a, b, c = QUINTIC
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For the matrices inside a network; embeddings, heads and vectors want AdamW.

    With several processes each makes its share of the matrices orthogonal, and they add up.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0,
        team: Team | None = None,
    ) -> None:
        self.team = team or Team()
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(list(matrices), defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Matrices of one shape move together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            for shape, parameters in shapes.items():
                wanted = torch.stack([self._momentum(p, group["momentum"]) for p in parameters])
                mine = slice(self.team.rank, None, self.team.size)
                moves = torch.zeros_like(wanted)
                moves[mine] = orthogonal(wanted[mine])
                self.team.sum([moves])
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_sub_(parameters, list(scale * moves))

    def _momentum(self, parameter: Tensor, keep: float) -> Tensor:
        """Nesterov's: the gradient, looked at from where momentum will carry it."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        state["momentum"].lerp_(parameter.grad, 1 - keep)
        return parameter.grad.lerp(state["momentum"], keep)
