"""A training run as one frozen value, in JSON both ways."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_origin

from fastdllm.errors import InputError, did_you_mean
from fastdllm.eval.task import generated
from fastdllm.training.objective import PATTERNS


@dataclass(frozen=True)
class Phase:
    """Which masks, until which share of the steps."""

    until: float
    masks: Mapping[str, float]
    """The weight of each pattern; see `objective`."""
    drills: float = 0.0
    """The share of rows that are packed sums instead of problems."""
    tasks: Mapping[str, float] = field(default_factory=dict)
    """Other tasks than the recipe's, or kinds of them: `lists/sort`. One alone teaches a young
    model to copy, or to see, much sooner."""
    longest: int = 0
    """Only problems of at most so many tokens, without a tail; 0 for all."""
    canvas: int = 0
    """Another canvas than the recipe's; 0 for that."""
    even: bool = False
    """Every masked position counts alike, instead of 1/t: less noise while the model is young."""
    cached: float = 0.0
    """The share of rows that are read as under the prefix cache: what stands before the block, the
    prompt too, as it was when the block was opened."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the outcome of a run."""

    name: str = "model"
    family: str = "llada"
    init: str = ""
    """A checkpoint folder to go on from; its shape and tokenizer are then used."""
    kept: float = 0.0
    """The share, in what is saved, of the weights it began with: between the two a model has learnt
    almost as much and forgotten less (WiSE-FT, arXiv 2109.01903)."""
    graft: str = ""
    """A checkpoint folder of another family, whose weights a new model begins with."""
    layers: int = 6
    width: int = 128
    heads: int = 4
    kv_heads: int = 4
    mlp: int = 384
    vocab: int = 1024
    tied: bool = True
    """The head is the embedding: a small model learns sooner to say what it reads."""
    context: int = 0
    """Tokens it may hold, prompt and canvas; 0 for 1,024, or what the model it goes on from may."""
    eyes: Mapping[str, int] = field(default_factory=dict)
    """Of a model that sees: side and patch of a tile, canvases of `grid` tiles a side, and the
    tower's width, layers, heads and mlp."""
    tasks: Mapping[str, float] = field(default_factory=dict)
    """The weight of each task."""
    data: str = ""
    """A JSONL file with prompt and answer, instead of tasks."""
    mode: str = "supervised"
    """supervised masks answers only, pretrain everything."""
    canvas: int = 256
    tails: float = 1.0
    """The share of answers that end-of-text follows up to the end of the canvas, as LLaDA does
    with all; after five times as many others it ends somewhere before, in every order of size
    alike, and one follows the rest."""
    block_size: int = 32
    steps: int = 1000
    batch: int = 64
    optimizer: str = "muon"
    lr: float = 1e-3
    """Of embeddings, head, norms and biases; of everything under adamw. Embeddings
    that move too fast cannot be found by attention: nothing is then copied from a prompt."""
    matrix_lr: float = 0.01
    """Of the matrices under muon."""
    warmup: float = 0.01
    """The share of steps in which the rate rises."""
    decay: float = 0.3
    """The share of steps in which it falls to zero, at the end."""
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    seed: int = 0
    phases: tuple[Phase, ...] = (Phase(1.0, {"random": 1.0}),)

    def __post_init__(self) -> None:
        _check(self)

    def phase(self, step: int) -> Phase:
        """What is trained at a step."""
        share = step / self.steps
        return next((p for p in self.phases if share < p.until), self.phases[-1])

    def rate(self, step: int) -> float:
        """Warm-up, stable, decay: the factor on the learning rates."""
        rise = max(1, round(self.warmup * self.steps))
        fall = max(1, round(self.decay * self.steps))
        return min(1.0, (step + 1) / rise, (self.steps - step) / fall)

    def to_json(self) -> str:
        """As `from_json` reads it."""
        return json.dumps(asdict(self), indent=2)


def from_json(text: str, name: str = "the recipe") -> Recipe:
    """A recipe from its JSON; an unknown key is an error."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{name} holds a {type(raw).__name__}; wanted an object")
    return change(Recipe(), raw, name)


def change(recipe: Recipe, values: Mapping[str, Any], name: str = "the recipe") -> Recipe:
    """A copy with other values."""
    _know(values, Recipe, name)
    if "phases" in values:
        phases = values["phases"]
        if not isinstance(phases, list | tuple) or not all(isinstance(p, Mapping) for p in phases):
            raise InputError(f"{name}: phases is {phases!r}; wanted a list of objects")
        for phase in phases:
            _know(phase, Phase, name)
            if not {"until", "masks"} <= phase.keys():
                raise InputError(f"{name}: a phase has no 'until' or no 'masks'")
        values = {**values, "phases": tuple(Phase(**phase) for phase in phases)}
    return replace(recipe, **values)


def _know(values: Mapping[str, Any], record: type[Recipe | Phase], name: str) -> None:
    """That every key is a field, and every value of the kind it is declared to be."""
    known = {f.name: f.type for f in fields(record)}
    for key, value in values.items():
        if key not in known:
            raise InputError(f"{name}: unknown key '{key}'; {did_you_mean(key, known)}")
        kind = known[key]
        if kind is float:
            good, wanted = _is_number(value), "a number"
        elif get_origin(kind) is Mapping:
            good = isinstance(value, Mapping) and all(map(_is_number, value.values()))
            wanted = 'names with numbers, such as {"all": 1}'
        elif isinstance(kind, type):
            good = isinstance(value, kind) and (kind is bool) == isinstance(value, bool)
            wanted = {int: "a whole number", bool: "true or false", str: "a text"}[kind]
        else:
            continue  # phases, which are known one by one
        if not good:
            raise InputError(f"{name}: {key} is {value!r}; wanted {wanted}")


def difference(one: Recipe, other: Recipe) -> str:
    """The first key in which two recipes differ, with both values."""
    key = next(f.name for f in fields(Recipe) if getattr(one, f.name) != getattr(other, f.name))
    return f"{key} was {getattr(one, key)!r:.60} and is {getattr(other, key)!r:.60}"


def agree(one: Recipe, other: Recipe, step: int) -> bool:
    """Whether two recipes do the same in all steps before this one; what follows may differ."""

    def timeless(recipe: Recipe) -> Recipe:
        whole = (Phase(1.0, {"random": 1.0}),)
        return replace(recipe, steps=1, warmup=0.0, decay=0.0, phases=whole)

    def at(recipe: Recipe, i: int) -> tuple[Phase, float]:
        return replace(recipe.phase(i), until=1.0), round(recipe.rate(i), 9)

    same = timeless(one) == timeless(other)
    return same and all(at(one, i) == at(other, i) for i in range(step))


def load(path: Path) -> Recipe:
    """A recipe from its file."""
    try:
        return from_json(path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} is no recipe: {error}") from None


def choose(
    name: str, *, init: str, tasks: Sequence[str], data: Path | None, values: Sequence[str]
) -> Recipe:
    """A recipe by its name or file, changed by what the command line says."""
    folder = files("fastdllm.zoo") / "recipes"
    shipped = {path.name.removesuffix(".json"): path for path in folder.iterdir()}
    if name in shipped:
        recipe = from_json(shipped[name].read_text(encoding="utf-8"), name)
    elif name and not Path(name).exists():
        hint = did_you_mean(name, sorted(shipped))
        raise InputError(f"there is no recipe '{name}', shipped or as a file; {hint}")
    else:
        recipe = load(Path(name)) if name else Recipe()
    if tasks and data is not None:
        raise InputError("--task and --data were both given; wanted one thing to learn from")
    changes: dict[str, Any] = {"init": init} if init else {}
    if tasks or data is not None:  # and nothing else, whatever the phases say
        own = dict(_weighted(task) for task in tasks)
        changes |= {"data": str(data or ""), "tasks": own}
        recipe = replace(recipe, phases=tuple(replace(p, tasks={}) for p in recipe.phases))
    for pair in values:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--set {pair} has no '='; wanted KEY=VALUE, such as steps=500")
        try:
            changes[key] = json.loads(value)
        except json.JSONDecodeError:
            changes[key] = value
    return change(recipe, changes, "--set")


def _weighted(task: str) -> tuple[str, float]:
    name, _, weight = task.partition("=")
    known = generated(name).name
    try:
        return known, float(weight or 1)
    except ValueError:
        raise InputError(f"--task {task}: '{weight}' is no weight; try {name}=2") from None


EYES = ("side", "patch", "grid", "width", "layers", "heads", "mlp")
CHOICES = {"mode": ("supervised", "pretrain"), "optimizer": ("adamw", "muon")}
POSITIVE = (
    "layers", "width", "heads", "kv_heads", "mlp", "vocab", "canvas", "block_size", "steps",
    "batch",
)  # fmt: skip


def _check(recipe: Recipe) -> None:
    for key in POSITIVE:
        value = getattr(recipe, key)
        if value < 1:
            raise InputError(f"{key} is {value!r}; wanted a whole number of at least 1")
    for key, options in CHOICES.items():
        value = getattr(recipe, key)
        if value not in options:
            raise InputError(f"{key} is '{value}'; {did_you_mean(value, options)}")
    if not -(2**31) <= recipe.seed < 2**31:
        raise InputError(f"seed is {recipe.seed}; wanted a whole number of at most 31 bits")
    if recipe.weight_decay < 0:
        raise InputError(f"weight_decay is {recipe.weight_decay!r}; wanted a number from 0")
    for key in ("lr", "matrix_lr", "clip"):
        if getattr(recipe, key) <= 0:
            raise InputError(f"{key} is {getattr(recipe, key)!r}; wanted a number above 0")
    if recipe.context < 0:
        raise InputError(f"context is {recipe.context!r}; wanted a whole number, 0 for the model's")
    for key in ("warmup", "decay", "ema", "tails", "kept"):
        if not 0 <= getattr(recipe, key) <= 1:
            raise InputError(f"{key} is {getattr(recipe, key)!r}; wanted a number in [0, 1]")
    whole = all(isinstance(n, int) and n > 0 for n in recipe.eyes.values())
    if recipe.eyes and (set(recipe.eyes) != set(EYES) or not whole):
        raise InputError(
            f"eyes is {dict(recipe.eyes)!r}; wanted {', '.join(EYES)}, whole numbers from 1"
        )
    if recipe.eyes and recipe.eyes["width"] % recipe.eyes["heads"]:
        raise InputError("the eyes' width does not go into their heads")
    if bool(recipe.eyes) != (recipe.family == "llava_llada") and not recipe.init:
        raise InputError("a llava_llada model has eyes, and no other family does")
    if recipe.kept and not recipe.init:
        raise InputError("kept is a share of the model that init names, and none is named")
    if recipe.init and recipe.graft:
        raise InputError("init goes on with a model, graft begins another: wanted one of the two")
    _check_tasks(recipe.tasks)
    if recipe.data and (recipe.tasks or any(phase.tasks for phase in recipe.phases)):
        raise InputError(f"data is {recipe.data} and tasks are named too: wanted one of the two")
    if not recipe.phases:
        raise InputError("phases is empty; leave it out for the paper's random masks")
    ends = [phase.until for phase in recipe.phases]
    if ends != sorted(set(ends)) or ends[0] <= 0:
        raise InputError(f"the phases last until {ends}; wanted shares of the steps that rise")
    for phase in recipe.phases:
        for key in ("drills", "cached"):
            if not 0 <= getattr(phase, key) <= 1:
                raise InputError(f"{key} is {getattr(phase, key)!r}; wanted a number in [0, 1]")
        for key in ("longest", "canvas"):
            if getattr(phase, key) < 0:
                raise InputError(f"a phase's {key} is {getattr(phase, key)!r}; wanted 0 or more")
        _check_weights("masks", phase.masks)
        if not phase.masks:
            raise InputError('a phase\'s masks are empty; try {"random": 1}')
        _check_tasks(phase.tasks)
        for pattern in phase.masks:
            if pattern not in PATTERNS:
                hint = did_you_mean(pattern, PATTERNS)
                raise InputError(f"unknown mask pattern '{pattern}'; {hint}")


def _check_tasks(tasks: Mapping[str, float]) -> None:
    _check_weights("tasks", tasks)
    for task in tasks:
        generated(task)


def _check_weights(name: str, weights: Mapping[str, float]) -> None:
    if any(not 0 <= w <= 1e6 for w in weights.values()) or (weights and not any(weights.values())):
        raise InputError(f'{name} is {weights!r}; wanted names with weights, such as {{"all": 1}}')


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
