"""The processes of a `torchrun`."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Team:
    """The processes of a `torchrun`, or the only one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> "Team":
        """What the environment says; with several processes, connect them."""
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if size > 1 and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(rank, size)

    def sum(self, tensors: list[Tensor]) -> None:
        """Add up over the processes, in place, in one message."""
        if self.size == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        torch.distributed.all_reduce(flat)
        for mine, added in zip(
            tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True
        ):
            mine.copy_(added.view_as(mine))
