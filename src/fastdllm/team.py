"""The processes of a `torchrun` or `accelerate launch`."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

PATIENCE = timedelta(days=1)
"""How long the others wait for one: it may evaluate for hours."""


@dataclass(frozen=True)
class Team:
    """This process's number and how many there are."""

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> "Team":
        """What the environment says."""
        return cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))

    @classmethod
    def join(cls, device: torch.device) -> "Team":
        """The same; several processes are connected."""
        team = cls.here()
        if team.size > 1 and not torch.distributed.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            torch.distributed.init_process_group(backend, timeout=PATIENCE)
        return team

    def wait(self) -> None:
        """Until all have come here."""
        if self.size > 1:
            torch.distributed.barrier()

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
