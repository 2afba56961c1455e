"""lm-evaluation-harness on our engine.

    fastdllm lm-eval --tasks gsm8k --model fastdllm \
        --model_args pretrained=GSAI-ML/LLaDA-8B-Instruct,select=frechet:0.25,cache=prefix

The public evaluation scripts' names and arguments work too: `llada_dist` and `dream`. Importing
this module registers all three with the harness.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import (
    get_rolling_token_windows,
    make_disjoint_window,
    simple_parse_args_string,
)
from tqdm import tqdm

import fastdllm
from fastdllm.compat import choose_rule
from fastdllm.errors import InputError, did_you_mean
from fastdllm.eval.likelihood import bound, is_greedy
from fastdllm.generation import Generation
from fastdllm.selection import Selector
from fastdllm.team import Team
from fastdllm.tokenizer import Tokenizer

IGNORED = {
    "max_batch_size", "trust_remote_code", "parallelize", "max_length", "backend", "save_dir",
    "outp_path",
}  # fmt: skip
"""Arguments of other models' scripts that change nothing here."""


@register_model("fastdllm")
class Harness(LM):  # type: ignore[misc]  # the library is untyped
    """Any checkpoint we can load, under any rule and cache."""

    def __init__(
        self,
        pretrained: str = "",
        select: str | Selector = "frechet:0.25",
        cache: str | None = "prefix",
        max_tokens: int | None = None,
        block_size: int = 32,
        early_stop: bool = True,
        batch_size: int | str | None = 1,
        device: str | None = None,
        dtype: str = "auto",
        mc_num: int = 128,
        is_check_greedy: bool = True,
        seed: int = 0,
        mask_id: int | None = None,
        shift: bool | None = None,
        add_bos_token: bool = False,
        escape_until: bool = False,
        show_speed: bool = False,
        **other: Any,
    ) -> None:
        """`max_tokens` goes before what a task asks for, which goes before 256."""
        super().__init__()
        unknown = [key for key in other if key not in IGNORED]
        if unknown:
            known = [k for k in Harness.__init__.__annotations__ if k not in ("other", "return")]
            raise InputError(
                f"unknown model argument '{unknown[0]}'; {did_you_mean(unknown[0], known)}"
            )
        if not pretrained:
            raise InputError("no model was named; give --model_args pretrained=FOLDER_OR_HUB_ID")
        self.max_tokens = max_tokens
        self.settings = Generation(
            max_tokens or 256, block_size, select, cache or "none",  # none is read as None
            seed=seed, early_stop=early_stop,
        )  # fmt: skip
        self.llm = fastdllm.LLM.load(
            pretrained, dtype=dtype, device=device or "auto", mask_id=mask_id, shift=shift
        )
        if self.llm.tokenizer is None:
            raise InputError(f"{pretrained} has no tokenizer, so the harness cannot ask it")
        self.tokenizer: Tokenizer = self.llm.tokenizer
        named = str(batch_size)
        self.batch = int(named) if named.isdigit() and int(named) else 8  # "auto", or nothing
        if not isinstance(mc_num, int) or mc_num < 1:
            raise InputError(f"mc_num is {mc_num!r}; wanted a whole number of at least 1")
        self.escape = escape_until
        self.start = self.tokenizer.start if add_bos_token else ""
        self.mc_num, self.check, self.seed = mc_num, is_check_greedy, seed
        self.show_speed = show_speed
        self.team = Team.join(self.llm.device)
        self._rank, self._world_size = self.team.rank, self.team.size
        self._device = self.llm.device

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "Harness":
        """What --model_args says goes before the harness's own defaults.

        Its default device is cuda, here or not; one of several processes has its own.
        """
        own = {k: v for k, v in (additional_config or {}).items() if v is not None}
        if str(own.get("device", "")).startswith("cuda"):
            own["device"] = "auto"
        return cls(**{**own, **arg_dict})

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "Harness":
        """The same, from one string."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # --- What the harness asks -----------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers, each up to the first of its stop strings."""
        answers: list[str] = [""] * len(requests)
        tokens = passes = 0
        begun = time.perf_counter()
        groups: dict[Generation, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(self._settings(request.args[1]), []).append(i)
        with self._bar(len(requests), disable_tqdm) as bar:
            for settings, places in groups.items():
                for start in range(0, len(places), self.batch):
                    part = places[start : start + self.batch]
                    prompts = [self._ask(requests[i].args[0]) for i in part]
                    for i, done in zip(part, self.llm.generate(prompts, settings), strict=True):
                        answers[i] = done.text
                        tokens, passes = tokens + done.usage.tokens, passes + done.usage.nfe
                        self.cache_hook.add_partial("generate_until", requests[i].args, done.text)
                    bar.update(len(part))
        if self.show_speed:
            seconds = time.perf_counter() - begun
            told = {
                "tokens": tokens, "seconds": round(seconds, 3), "nfe": passes,
                "tokens_per_second": round(tokens / seconds, 2) if seconds else 0.0,
                "tokens_per_nfe": round(tokens / passes, 3) if passes else 0.0,
            }  # fmt: skip
            print(json.dumps(told), file=sys.stderr)
        return answers

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """The masked bound, and whether the continuation is what one token a pass writes."""
        found = []
        with self._bar(len(requests), disable_tqdm) as bar:
            for request in requests:
                context, continuation = request.args
                prefix, target = self._pair(context, continuation)
                answer = self._bound(prefix, target), self.check and self._greedy(prefix, target)
                self.cache_hook.add_partial("loglikelihood", request.args, answer)
                found.append(answer)
                bar.update()
        return found

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The bound of whole texts, in windows of the model's context."""
        found = []
        with self._bar(len(requests), disable_tqdm) as bar:
            for request in requests:
                windows = get_rolling_token_windows(
                    self.tokenizer.encode(request.args[0]), prefix_token=self._first,
                    max_seq_len=self._context - 1, context_len=1,
                )  # fmt: skip
                pairs = map(make_disjoint_window, windows)
                total = sum(self._bound(prefix, target) for prefix, target in pairs)
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
                found.append(total)
                bar.update()
        return found

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Messages as the model's own template writes them."""
        if not add_generation_prompt:
            raise InputError("the chat templates of these models end with the assistant's turn")
        return self.tokenizer.chat(chat_history)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template itself, for the harness's records."""
        return self.tokenizer.template or ""

    @property
    def tokenizer_name(self) -> str:
        """For the harness's caches."""
        return self.llm.name.replace("/", "__")

    # --- Several processes ---------------------------------------------------------------------

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every process's tensor, one after the other."""
        if self.world_size == 1:
            return tensor
        flat = tensor.reshape(-1)
        parts = [torch.empty_like(flat) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, flat)
        return torch.cat(parts)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """Every process's object, at one of them."""
        if self.world_size == 1:
            return [obj]
        found = [None] * self.world_size if self.rank == dst else None
        torch.distributed.gather_object(obj, found, dst=dst)
        return found

    def barrier(self) -> None:
        """Wait for the others."""
        self.team.wait()

    # --- From requests to the engine -----------------------------------------------------------

    def _ask(self, context: str) -> Any:
        """The prompt as the engine takes it."""
        return self.start + context

    def _settings(self, asked: dict[str, Any]) -> Generation:
        until = asked.get("until") or ()
        stop = (until,) if isinstance(until, str) else tuple(s for s in until if s)
        stop = () if self.escape else stop
        size = self.max_tokens or asked.get("max_gen_toks") or self.settings.max_tokens
        warm = float(asked.get("temperature") or 0) if asked.get("do_sample", True) else 0.0
        return replace(self.settings, max_tokens=int(size), stop=stop, temperature=warm)

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Spaces at the seam belong to the continuation; both are cut from one encoding."""
        context = self.start + context
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        whole, prefix = self.tokenizer.encode(kept + continuation), self.tokenizer.encode(kept)
        target = whole[len(prefix) :]
        return prefix or [self._first], target

    def _fit(self, prefix: Sequence[int], target: Sequence[int]) -> tuple[list[int], list[int]]:
        """The end of the prefix that leaves room for the target."""
        room = self._context - len(target)
        if room < 1:
            raise InputError(
                f"a text of {len(target)} tokens does not fit the context of {self._context}"
            )
        return list(prefix)[-room:], list(target)

    def _bound(self, prefix: Sequence[int], target: Sequence[int]) -> float:
        prefix, target = self._fit(prefix, target)
        return bound(
            self.llm, prefix, target, samples=self.mc_num, batch=self.batch, seed=self.seed
        )

    def _greedy(self, prefix: Sequence[int], target: Sequence[int]) -> bool:
        return is_greedy(self.llm, *self._fit(prefix, target))

    @property
    def _first(self) -> int:
        """What stands before a text without a context: the end of another."""
        return self.llm.end_ids[0] if self.llm.end_ids else self.tokenizer.encode("\n")[0]

    @property
    def _context(self) -> int:
        return self.llm.context or 4096

    def _bar(self, total: int, disable: bool) -> Any:
        return tqdm(total=total, disable=disable or self.rank > 0)


# --- The public scripts' names -----------------------------------------------------------------


@register_model("llada_dist")
class LLaDAScript(Harness):
    """The arguments of Fast-dLLM's and LLaDA's `eval_llada.py`."""

    def __init__(
        self,
        model_path: str = "",
        gen_length: int = 1024,
        steps: int = 1024,
        block_length: int = 1024,
        use_cache: bool = False,
        dual_cache: bool = False,
        threshold: float | None = None,
        factor: float | None = None,
        frechet_margin: float | None = None,
        remasking: str = "low_confidence",
        cfg: float = 0.0,
        pretrained: str = "",
        select: str | Selector = "",
        **other: Any,
    ) -> None:
        """The canvas is filled to its end, as theirs."""
        if remasking != "low_confidence" or cfg:
            raise InputError("only remasking=low_confidence and cfg=0 are run here")
        if dual_cache and not use_cache:
            raise InputError("dual_cache wants use_cache=True as well")
        rule = select or choose_rule(
            steps, gen_length, block_length, threshold=threshold, factor=factor,
            frechet_margin=frechet_margin,
        )  # fmt: skip
        cache = "dual" if dual_cache else "prefix" if use_cache else "none"
        super().__init__(
            pretrained or model_path, rule, cache, gen_length, block_length, early_stop=False,
            **other,
        )  # fmt: skip

    def _ask(self, context: str) -> Any:
        """An instruct model is asked in a chat turn, as that script does by the model's name."""
        if "instruct" in self.llm.name.lower() and self.tokenizer.template:
            return [{"role": "user", "content": context}]
        return super()._ask(context)


@register_model("dream")
class DreamScript(LLaDAScript):
    """The arguments of Fast-dLLM's and Dream's `eval.py`; also those of `llada_dist`."""

    def __init__(
        self,
        pretrained: str = "",
        max_new_tokens: int = 128,
        diffusion_steps: int | None = None,
        alg: str = "",
        temperature: float = 0.0,
        gen_length: int | None = None,
        steps: int | None = None,
        block_length: int | None = None,
        threshold: float | None = None,
        **other: Any,
    ) -> None:
        """`alg` names the order: maskgit_plus is by confidence, entropy one token a step."""
        known = ("", "confidence_threshold", "maskgit_plus", "entropy")
        size = gen_length or max_new_tokens
        steps = steps or diffusion_steps or size
        if alg not in known:
            raise InputError(f"alg is '{alg}'; {did_you_mean(alg, known[1:])}")
        if alg == "entropy" and steps != size:
            raise InputError(
                f"alg=entropy is run with as many steps as tokens; got {steps} for {size}"
            )
        if temperature:
            raise InputError("only temperature=0 is run here")
        if alg == "confidence_threshold" and threshold is None:
            threshold = 0.9
        if block_length is None:  # their sampler without a cache knows no blocks
            block_length = 32 if other.get("use_cache") and size % 32 == 0 else size
        super().__init__(
            pretrained=pretrained, gen_length=size, steps=steps, block_length=block_length,
            threshold=threshold, select="entropy:0" if alg == "entropy" else "", **other,
        )  # fmt: skip


def main(arguments: Iterable[str]) -> None:
    """Run the harness's own command with these arguments."""
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *arguments]
    try:
        cli_evaluate()
    except InputError:
        raise
    except (ValueError, KeyError) as error:  # an unknown task, model or option of the harness
        raise InputError(f"lm-eval: {str(error).strip().splitlines()[0]}") from None
