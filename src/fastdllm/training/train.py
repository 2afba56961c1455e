"""The training loop. Everything a step does follows from the recipe and the step's number, so a
run that was killed goes on from its last state as if nothing had happened.

    OUTPUT/recipe.json            what was asked for
    OUTPUT/metrics.jsonl          a line per logged step and per evaluation
    OUTPUT/state.pt               to resume from
    OUTPUT/config.json, model.safetensors, tokenizer.json ...   the model, with averaged weights
"""

import hashlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fastdllm.errors import CheckpointError, DivergedError, InputError
from fastdllm.eval.task import generated
from fastdllm.models.config import ModelConfig
from fastdllm.models.families import FAMILIES
from fastdllm.models.loading import find_folder, load_model
from fastdllm.models.saving import save_model
from fastdllm.models.transformer import Transformer
from fastdllm.team import Team
from fastdllm.tokenizer import Tokenizer
from fastdllm.training import vocabulary
from fastdllm.training.data import Data, Example, source, stack, texts
from fastdllm.training.graft import graft
from fastdllm.training.muon import Muon
from fastdllm.training.objective import (
    PATTERNS,
    Opening,
    chances,
    guessed,
    loss,
    opening,
    strata,
    weights,
)
from fastdllm.training.recipe import Phase, Recipe, agree, difference, from_json, load
from fastdllm.vision.eyes import EyesConfig
from fastdllm.vision.prompt import special_ids

PIECE = 512
"""Tokens a forward pass: few, so that they stay in the processor's caches and its rows are of like
length; and several pieces a batch, so that the processes of a team get equal shares."""
TEXTS = 20_000  # problems to learn a vocabulary from


def new_model(config: ModelConfig, seed: int) -> Transformer:
    """Random weights: normal with 0.02, smaller where a block adds to the stream.

    Embeddings begin with size one, as features of eyes do: smaller ones drown in what the first
    blocks add, and nothing is copied from a prompt for thousands of steps. Where they are the
    head too, the last norm is as small as makes logits of size one.
    """
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name == "eyes.newline":
            nn.init.normal_(parameter, std=0.02, generator=generator)
        elif name == "norm.weight" and config.tied:
            nn.init.constant_(parameter, config.width**-0.5)
        elif parameter.ndim == 1:
            nn.init.ones_(parameter)
        elif name == "embed.weight":
            nn.init.normal_(parameter, generator=generator)
        elif name.startswith("eyes."):
            place = name.endswith("position_embedding.weight")
            scale = 0.5 if place else parameter[0].numel() ** -0.5
            nn.init.normal_(parameter, std=scale, generator=generator)
        else:
            ends = name.endswith((".o.weight", ".down.weight", ".out_proj.weight", ".fc2.weight"))
            scale = 0.02 if not ends else 0.02 / (2 * config.layers) ** 0.5
            nn.init.normal_(parameter, std=scale, generator=generator)
    return model


def new_config(recipe: Recipe, tokenizer: Tokenizer) -> ModelConfig:
    """The shape of a recipe, with the family's own switches."""
    r = recipe
    if r.family not in vocabulary.DIALECTS:
        raise InputError(f"a new model is made as {' or '.join(vocabulary.DIALECTS)} only")
    if r.width % r.heads or r.heads % r.kv_heads or (r.width // r.heads) % 2:
        raise InputError(
            f"width {r.width} does not go into {r.heads} heads and {r.kv_heads} key heads"
        )
    switches: dict[str, Any] = {"qkv_bias": False, **FAMILIES[r.family].switches}
    return ModelConfig(
        family=r.family, layers=r.layers, width=r.width, heads=r.heads, kv_heads=r.kv_heads,
        head_dim=r.width // r.heads, mlp=r.mlp, vocab=len(tokenizer), context=r.context or 1024,
        eps=1e-5 if r.family == "llada" else 1e-6, theta=10_000.0, stored_dtype="float32",
        tied=r.tied, mask_id=tokenizer.mask_id, end_ids=tokenizer.end_ids[:1],
        eyes=_new_eyes(r.eyes) if r.eyes else None, **switches,
    )  # fmt: skip


def _new_eyes(shape: Mapping[str, int]) -> EyesConfig:
    side, tiles = shape["side"], range(1, shape["grid"] + 1)
    return EyesConfig(
        shape["width"], shape["mlp"], shape["layers"], shape["heads"], side, shape["patch"],
        tuple((side * i, side * j) for i in tiles for j in tiles), 4,
    )  # fmt: skip


def learnt(recipe: Recipe) -> dict[str, Any]:
    """The versions of its tasks, or the hash of its file, and that of the weights it begins with:
    with others it is not the same run."""
    found: dict[str, Any] = {}
    if recipe.data:
        found["data"] = _hash([Path(recipe.data)])
    for mix in (recipe.tasks, *(phase.tasks for phase in recipe.phases)):
        found |= {name: generated(name).version for name in mix}
    if recipe.init or recipe.graft:
        folder = _stage(recipe.init or recipe.graft)
        found["weights"] = _hash(sorted(folder.glob("*.safetensors")))
    return dict(sorted(found.items()))


def _hash(files: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                found.update(piece)
    return found.hexdigest()[:16]


class Optimizers:
    """AdamW, or Muon for the matrices inside the blocks and AdamW for the rest."""

    def __init__(self, model: Transformer, recipe: Recipe, team: Team) -> None:
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        tables: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            inside = parameter.ndim == 2 and any(
                part in name for part in ("blocks", "encoder", "projector")
            )
            kind = vectors if parameter.ndim == 1 else matrices if inside else tables
            kind.append(parameter)
        decayed = tables if recipe.optimizer == "muon" else tables + matrices
        groups = [
            {"params": decayed, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95)), recipe.lr)
        ]
        if recipe.optimizer == "muon":
            muon = Muon(matrices, recipe.matrix_lr, weight_decay=recipe.weight_decay, team=team)
            self.parts.append((muon, recipe.matrix_lr))

    def step(self, factor: float) -> None:
        """Move, at a share of the learning rates."""
        for optimizer, rate in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[Any]:
        """To save."""
        return [optimizer.state_dict() for optimizer, _ in self.parts]

    def load(self, states: list[Any]) -> None:
        """What `state` gave."""
        for (optimizer, _), state in zip(self.parts, states, strict=True):
            optimizer.load_state_dict(state)


class Trainer:
    """A run on its way."""

    def __init__(self, recipe: Recipe, output: Path, *, device: torch.device) -> None:
        self.recipe, self.output, self.device = recipe, output, device
        self.team = Team.join(device)
        draw = source(recipe.tasks, Path(recipe.data) if recipe.data else None)
        self.learnt = learnt(recipe)
        self.tokenizer = self._tokenizer(draw)
        self.model = self._model().to(device)
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.began = [p.clone() for p in self.average] if recipe.kept else self.average
        self.optimizers = Optimizers(self.model, recipe, self.team)
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.losses: list[float] = []
        """Since the last logged line; kept with the state, so that a resumed line is the same."""
        config = self.model.config
        self.data = Data(
            draw, self.tokenizer, end_id=self.end_id, batch=recipe.batch,
            canvas=recipe.canvas, context=config.context, seed=recipe.seed,
            pretrain=recipe.mode == "pretrain", eyes=config.eyes, tails=recipe.tails,
        )  # fmt: skip
        self._resume()

    @property
    def end_id(self) -> int:
        """What an answer is padded with: what ends one when this family decodes."""
        config = self.model.config
        return config.end_ids[0] if config.eyes is None else special_ids(self.tokenizer)[1][0]

    @cached_property
    def digit(self) -> Tensor:
        """The value of a token of digits, by its first three, and -1 of others."""
        pieces = (self.tokenizer.piece(i).strip() for i in range(len(self.tokenizer)))
        return torch.tensor([int(p[:3]) if p.isdecimal() else -1 for p in pieces])

    @cached_property
    def letterless(self) -> Tensor:
        """Which tokens have no letter: digits, signs, spaces."""
        pieces = map(self.tokenizer.piece, range(len(self.tokenizer)))
        return torch.tensor([not any(map(str.isalpha, piece)) for piece in pieces])

    # --- Setting up and resuming ---------------------------------------------------------------

    def _tokenizer(self, draw: Any) -> Tokenizer:
        if self.team.rank == 0:  # the others read what it writes
            if self.recipe.init:
                vocabulary.copy(_stage(self.recipe.init), self.output)
            elif not (self.output / "state.pt").exists():
                samples = texts(draw, TEXTS, self.recipe.seed)
                vocabulary.build(self.recipe.family, samples, self.recipe.vocab, self.output)
        self.team.wait()
        found = Tokenizer.load(self.output)
        if found is None:
            raise CheckpointError(f"{self.output} has no tokenizer")
        return found

    def _model(self) -> Transformer:
        if not self.recipe.init:
            model = new_model(new_config(self.recipe, self.tokenizer), self.recipe.seed)
            if self.recipe.graft:
                folder = _stage(self.recipe.graft)
                donor, tokens = load_model(folder, "float32", "cpu"), Tokenizer.load(folder)
                assert tokens is not None  # `start` saw to it
                graft(model, self.tokenizer, donor, tokens)
            return model
        model = load_model(_stage(self.recipe.init), "float32", "cpu")
        tokenizer, config = self.tokenizer, model.config
        if model.eyes is not None:
            model.cut_vocabulary(len(tokenizer))
            mask: int | None = special_ids(tokenizer)[0]
        else:
            mask = tokenizer.mask_id if config.mask_id is None else config.mask_id
        ends = config.end_ids or tokenizer.end_ids
        if mask is None or not ends:
            missing = "a mask token" if mask is None else "an end of text"
            raise CheckpointError(
                f"{self.recipe.init}: neither config.json nor the tokenizer names {missing}"
            )
        context = self.recipe.context or config.context
        model.config = replace(model.config, mask_id=mask, end_ids=ends, context=context)
        return model.requires_grad_(True)

    def _resume(self) -> None:
        path = self.output / "state.pt"
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            began = replace(from_json(state["recipe"]), name=self.recipe.name)
            same = agree(began, self.recipe, state["step"])
            before = {key: state["learnt"][key] for key in state["learnt"] if key in self.learnt}
            now = {key: self.learnt[key] for key in before}
            if same and before == now:
                self._take(state)
        except (OSError, MemoryError):  # nothing is wrong with the file
            raise
        except Exception as error:  # zip, pickle, key and runtime errors alike
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise CheckpointError(
                f"{path} is damaged ({reason}); delete it to start this run anew"
            ) from None
        if not same:
            raise InputError(
                f"{self.output} holds a run of another recipe: {difference(began, self.recipe)}; "
                "name another --output, or delete it"
            )
        if before != now:
            raise InputError(
                f"{self.output} was begun with other data or weights: {before}, now {now}; "
                "name another --output, or delete it"
            )
        if self.team.rank == 0:  # its future may have changed
            (self.output / "recipe.json").write_text(self.recipe.to_json() + "\n")

    def _take(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        self.optimizers.load(state["optimizers"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.losses = state["losses"]
        self.data.seen, self.data.too_long, self.data.counted = state["counts"]

    def save(self) -> None:
        """The model as a folder others can load, then the state to resume from.

        In this order: a run killed in between makes its last steps again, and saves both.
        """
        if self.team.rank:
            return
        try:
            self._write()
        except (SafetensorError, RuntimeError) as error:  # how these libraries say it
            reason = str(error).splitlines()[0]
            raise OSError(f"{self.output} could not be saved to: {reason}") from None

    def _write(self) -> None:
        with self.averaged():
            save_model(self.model, self.output)
        state = {
            "recipe": self.recipe.to_json(), "model": self.model.state_dict(),
            "average": self.average, "optimizers": self.optimizers.state(), "step": self.step,
            "tokens": self.tokens, "seconds": self.seconds, "losses": self.losses,
            "counts": [self.data.seen, self.data.too_long, self.data.counted],
            "learnt": self.learnt,
        }  # fmt: skip
        torch.save(state, self.output / "state.pt.new")
        os.replace(self.output / "state.pt.new", self.output / "state.pt")

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model as it is saved, for a while: the average of its weights, and what is kept."""
        own = [p.detach().clone() for p in self.model.parameters()]
        kept = self.recipe.kept
        self._put(torch._foreach_lerp(self.average, self.began, kept) if kept else self.average)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.model.parameters(), values, strict=True):
            parameter.copy_(value)

    # --- One step ------------------------------------------------------------------------------

    def train_step(self) -> dict[str, float]:
        """Forward, backward, move; how it went."""
        begun = time.perf_counter()
        phase = self.recipe.phase(self.step)
        draw = source(phase.tasks, None) if phase.tasks else None
        examples = self.data.at(self.step, phase.drills, phase.longest, draw, phase.canvas)
        cost = self._gradients(examples, phase)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        if not (math.isfinite(cost) and math.isfinite(norm)):  # before a weight is touched
            raise DivergedError(
                f"the loss is {cost} at step {self.step + 1}, its gradient {float(norm)}; what was "
                f"last saved in {self.output} is whole. Try --set lr and matrix_lr with less"
            )
        factor = self.recipe.rate(self.step)
        self.optimizers.step(factor)
        keep = min(self.recipe.ema, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.model.parameters()], 1 - keep)
        self.step += 1
        self.tokens += sum(map(len, examples))
        self.seconds += time.perf_counter() - begun
        self.losses.append(cost)
        return {"norm": float(norm), "rate": factor}

    def _gradients(self, examples: Sequence[Example], phase: Phase) -> float:
        """The batch's loss; its gradients, of all processes together, are in the parameters.

        Rows of all lengths make a batch: one that holds only short problems, or one kind, teaches
        far less. It is cut by length, so that little is padded, and the parts are dealt out.
        """
        rows, total = self._rows(len(examples), phase), torch.zeros(2, device=self.device)
        for part in deal([len(e) for e in examples], PIECE, self.team):
            mine = [examples[i] for i in part]
            ids, noisy, masked, weight, opened = self._noised(mine, rows, part, phase)
            seen = [(e.picture, e.at) if e.picture else None for e in mine]
            value = loss(self.model, ids, noisy, masked, weight, seen, opened)
            value.backward()  # type: ignore[no-untyped-call]
            total += torch.stack((value.detach(), masked.sum()))
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()
        ]
        self.team.sum([*gradients, total])
        over = total[1].clamp(min=1) if phase.even else len(examples)
        torch._foreach_div_(gradients, over)
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return float(total[0] / over)

    def _rows(self, count: int, phase: Phase) -> dict[str, Tensor]:
        """What decides the masks of each row of a batch."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 2**32 + self.step)
        kinds = torch.tensor([phase.masks.get(p, 0.0) for p in PATTERNS])
        return {
            "pattern": torch.multinomial(kinds, count, replacement=True, generator=generator),
            "t": strata(count, generator),
            "at": torch.rand(count, generator=generator),
            "seed": torch.randint(2**62, (count,), generator=generator),
            "cached": torch.rand(count, generator=generator) < phase.cached,
        }

    def _noised(
        self,
        examples: Sequence[Example],
        rows: dict[str, Tensor],
        part: Sequence[int],
        phase: Phase,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Opening | None]:
        """Ids, ids with masks, where those to guess are, what each weighs, and of rows that are
        read as under a cache what it holds."""
        config = self.model.config
        assert config.mask_id is not None
        ids, maskable = stack(examples, self.end_id)
        maskable[:, 0] &= not config.shift  # nothing stands before it to read it at
        keys = ("pattern", "t", "at", "seed", "cached")
        pattern, t, at, seeds, cached = (rows[key][list(part)] for key in keys)
        pattern[torch.tensor([bool(e.only) for e in examples])] = PATTERNS.index("all")
        digit, letterless = self.digit[ids], self.letterless[ids]
        chance = chances(pattern, maskable, digit, letterless, self.recipe.block_size, t, at)
        draws = [
            torch.rand(ids.shape[1], generator=torch.Generator().manual_seed(int(seed)))
            for seed in seeds
        ]
        masked = torch.stack(draws) < chance
        noisy = torch.where(masked, config.mask_id, ids)
        opened = None
        if cached.any():
            held, kept = opening(ids, maskable, chance, cached, config)
            opened = held.to(self.device), kept.to(self.device)
        chance = torch.where(guessed(pattern, chance), chance, 0.0)
        masked &= chance > 0
        weight = masked.float() if phase.even else weights(masked, chance)
        ids, noisy, masked, weight = (x.to(self.device) for x in (ids, noisy, masked, weight))
        return ids, noisy, masked, weight, opened


def _stage(name: str) -> Path:
    """A checkpoint to begin with; of an embedded model's stages, which is to be trained first."""
    folder = Path(name)
    if folder.parent.name == "runs" and not folder.is_dir():
        raise InputError(
            f"there is no {name}, which this begins with; train that first (of the embedded models "
            "`make train-tiny` makes every stage, in order)"
        )
    return find_folder(name)


def _check_output(recipe: Recipe, output: Path) -> None:
    """Complain before anything is written if that would replace what this run did not make."""
    if (output / "state.pt").exists():
        return  # checked against the state
    models = [*output.glob("*.safetensors"), *output.glob("*.safetensors.index.json")]
    ours = output / "recipe.json"
    if models and (not ours.exists() or load(ours) != recipe):
        raise InputError(
            f"{output} holds {models[0].name}, which this run did not make; name another --output"
        )


def deal(lengths: Sequence[int], most: int, team: Team) -> list[list[int]]:
    """One process's share of the rows, in pieces of like length and at most so many tokens.

    The largest piece goes to whoever has least to do so far.

    >>> deal([3, 9, 4, 9], 9, Team(0, 2)), deal([3, 9, 4, 9], 9, Team(1, 2))
    ([[1], [0, 2]], [[3]])
    """
    pieces: list[list[int]] = [[]]
    for row in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if pieces[-1] and (len(pieces[-1]) + 1) * lengths[row] > most:
            pieces.append([])
        pieces[-1].append(row)
    shares: list[list[list[int]]] = [[] for _ in range(team.size)]
    load = [0] * team.size
    for piece in sorted(pieces, key=lambda p: -len(p) * lengths[p[-1]]):
        least = load.index(min(load))
        shares[least].append(piece)
        load[least] += len(piece) * lengths[piece[-1]]
    return shares[team.rank]


def start(recipe: Recipe, output: Path, *, device: torch.device) -> Trainer:
    """A trainer for a folder: new, or from where it stopped."""
    for folder in filter(None, (recipe.init, recipe.graft)):
        found = _stage(folder)
        if found.resolve() == output.resolve():
            raise InputError(f"{folder} is what this begins with; name another --output")
        if Tokenizer.load(found) is None:
            raise CheckpointError(f"{folder} has no tokenizer; wanted a tokenizer.json in it")
    _check_output(recipe, output)
    output.mkdir(parents=True, exist_ok=True)
    told, path = recipe.to_json() + "\n", output / "recipe.json"
    if not (output / "state.pt").exists() and not (path.exists() and path.read_text() == told):
        path.write_text(told)  # with a state, it is checked against that
    return Trainer(recipe, output, device=device)
