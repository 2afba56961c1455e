"""Fast-dLLM's own functions and shapes: a user of that code changes one import.

    from fastdllm.compat import generate, generate_with_prefix_cache, generate_with_dual_cache
    x, nfe = generate_with_prefix_cache(model, prompt, steps=128, gen_length=128, block_length=32,
                                        threshold=0.9)

`model` is an `LLM`, its `Transformer`, or a foreign model (without a cache, then). Deliberate
differences from that code:

- factor is the rule as written; theirs also commits the last masked token when only that one fails.
- no mask is ever left in the result; their dual cache returns masks when the steps run out, and
  there `steps` bounds the passes of threshold and factor too. Here it only sets the fixed schedule.
- the mask token is never proposed; masks inside the prompt are evidence and stay.
- rows of a batch stand in their own block and do not influence each other. `nfe` is the number of
  passes of the row that took the most.
- decisions are taken on float32 doubts, not on float64 soft-maxes of the whole canvas.
- `threshold`, `factor` and `frechet_margin` exclude each other; theirs lets one win silently.
- `mask_id` is the model's own unless it is given; LLaDA's 126336 where the model names none.
- no early stop, as theirs: the canvas is filled to the end.
- `remasking` must be "low_confidence"; their "random" is not offered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fastdllm.certificate import check_like
from fastdllm.denoise import denoise
from fastdllm.errors import InputError
from fastdllm.generation import Generation
from fastdllm.llm import LLM
from fastdllm.models.transformer import Transformer
from fastdllm.predict import check_rows, predict
from fastdllm.selection import Factor, Frechet, Mask, Profile, Selector, Threshold, parse

TransferFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def transfer_function(select: Selector | str, *, mask_id: int) -> TransferFunction:
    """A `(logits, mask_index, x) -> (x0, transfer_index)` that decides by any rule.

    As Fast-dLLM's `get_transfer_index`: `x0` is x with every masked position proposed, and
    `transfer_index` says which of the proposals to keep. The mask token is never proposed, and
    only the masked positions' logits are read.

    >>> get_transfer_index = transfer_function("frechet:0.25", mask_id=3)
    >>> x = torch.tensor([[0, 3, 3]])
    >>> logits = torch.tensor([[[9.0, 0, 0, 0], [9.0, 0, 0, 0], [0.0, 1, 0, 5]]])
    >>> get_transfer_index(logits, x == 3, x)
    (tensor([[0, 0, 1]]), tensor([[False,  True, False]]))
    """
    rule = parse(select) if isinstance(select, str) else select

    def transfer(
        logits: Float[Tensor, "batch length vocab"],
        mask_index: Bool[Tensor, "batch length"],
        x: Int[Tensor, "batch length"],
    ) -> tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
        check_like("mask_index", mask_index, logits.shape[:-1], torch.bool)
        check_like("x", x, logits.shape[:-1])
        wanted = logits[mask_index]
        read = predict(wanted, forbidden=(mask_id,), entropy=rule.needs_entropy, check=False)

        def spread(values: Tensor, fill: Tensor) -> Tensor:
            return fill.masked_scatter(mask_index, values)

        nothing = torch.zeros(x.shape, device=logits.device)
        x0 = spread(read.token.to(x.dtype), x)
        profile = Profile(
            token=x0,
            doubt=spread(read.doubt, nothing),
            runner_up=None if read.runner_up is None else spread(read.runner_up, nothing),
            entropy=None if read.entropy is None else spread(read.entropy, nothing),
            masked=mask_index,
        )
        check_rows(profile)  # here, where a row still has its place
        return x0, rule(profile)

    return transfer


@dataclass(frozen=True)
class Schedule(Selector):
    """Fast-dLLM's fixed schedule: a block of `size` in `steps` passes, the larger shares first."""

    size: int
    steps: int
    name = "schedule"

    def __post_init__(self) -> None:
        """Both were checked by `_generate`."""

    def _accept(self, ranked: Profile) -> Mask:
        shares = [self.size // self.steps] * self.steps
        for i in range(self.size % self.steps):
            shares[i] += 1
        # How many go is known from how many are left: before pass i, size - shares[:i] are.
        table = torch.ones(self.size + 1, dtype=torch.long)
        left = self.size
        for share in shares:
            table[left] = share
            left -= share
        count = table.to(ranked.doubt.device)[ranked.masked.sum(dim=-1, keepdim=True)]
        ranks = torch.arange(1, ranked.doubt.shape[-1] + 1, device=ranked.doubt.device)
        return ranks <= count


def choose_rule(
    steps: int,
    gen_length: int,
    block_length: int,
    *,
    threshold: float | None = None,
    factor: float | None = None,
    frechet_margin: float | None = None,
) -> Selector:
    """The rule that is named by its own option, or the fixed schedule.

    >>> choose_rule(8, 256, 32, threshold=0.9)
    Threshold(tau=0.9)
    """
    options = {"threshold": threshold, "factor": factor, "frechet_margin": frechet_margin}
    rules = {"threshold": Threshold, "factor": Factor, "frechet_margin": Frechet}
    given = [rules[name](value) for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InputError("threshold, factor and frechet_margin exclude each other; give one")
    if given:
        return given[0]
    blocks, rest = divmod(gen_length, block_length) if block_length > 0 else (0, 1)
    if rest or blocks < 1 or steps < blocks or steps % blocks:
        raise InputError(
            f"steps {steps}, gen_length {gen_length}, block_length {block_length}; wanted a whole "
            "number of blocks, and of steps in each; or give a threshold, factor or frechet_margin"
        )
    return Schedule(block_length, min(steps // blocks, block_length))


def _mask_id(model: Any, given: int | None) -> int | None:
    """LLaDA's, where neither the caller nor the model names one."""
    known = model.config.mask_id if isinstance(model, Transformer) else None
    return given if given is not None else known if known is not None else 126336


def _with_cache(cache: str) -> Callable[..., tuple[Tensor, int]]:
    def generate(
        model: Any,
        prompt: Int[Tensor, "batch length"] | Int[Tensor, " length"],
        steps: int = 128,
        gen_length: int = 128,
        block_length: int = 128,
        temperature: float = 0.0,
        remasking: str = "low_confidence",
        mask_id: int | None = None,
        threshold: float | None = None,
        factor: float | None = None,
        frechet_margin: float | None = None,
    ) -> tuple[Int[Tensor, "batch canvas"], int]:
        """Prompt ids to the whole canvas and the number of forward passes, as Fast-dLLM's own."""
        if remasking != "low_confidence":
            raise InputError(f"remasking is {remasking!r}; only 'low_confidence' is run here")
        llm = model if isinstance(model, LLM) else LLM(model, mask_id=_mask_id(model, mask_id))
        if mask_id is not None and llm.mask_id != mask_id:
            llm = LLM(llm.model, mask_id=mask_id, shift=llm.shift)
        if prompt.ndim == 1:
            prompt = prompt[None]
        rule = choose_rule(
            steps, gen_length, block_length, threshold=threshold, factor=factor,
            frechet_margin=frechet_margin,
        )  # fmt: skip
        rows = []
        for number, ids in enumerate(prompt):
            seed = int(torch.randint(2**31, ())) if temperature else 0  # as theirs: torch's own
            settings = Generation(
                gen_length, block_length, rule, cache, temperature, seed=seed, early_stop=False
            )
            rows.append(llm.row(ids, settings, number))
        passes = [0] * len(rows)
        for step in denoise(llm.reader(cache), rows, (llm.mask_id,)):
            passes[step.row] += 1
        return torch.stack([row.ids for row in rows]).to(prompt.device), max(passes, default=0)

    return generate


generate = _with_cache("none")
generate_with_prefix_cache = _with_cache("prefix")
generate_with_dual_cache = _with_cache("dual")
