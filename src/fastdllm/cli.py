"""The command line. Each command imports only what it needs."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastdllm import __version__
from fastdllm.errors import FastDLLMError, InputError, did_you_mean

if TYPE_CHECKING:
    from fastdllm.denoise import Row
    from fastdllm.eval.tune import Trial
    from fastdllm.generation import Completion, Generation
    from fastdllm.llm import LLM
    from fastdllm.tokenizer import Message

app = typer.Typer(
    help="Faster decoding for masked diffusion language models, with a certificate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

ORACLE_RULES = (
    "full threshold:0.9 threshold:0.5 factor:0.75 frechet:0.25 exact:0.25 entropy:0.5 topk:4"
)


def main() -> None:
    """The entry point: an error of ours is one line and its exit code, never a traceback."""
    try:
        app()
    except FastDLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"fastdllm {__version__}")
        raise typer.Exit


DEFAULT = "tiny-llada"  # comes with the package
Model = Annotated[
    str, typer.Option("--model", "-m", help="tiny-llada, a model folder or a hub id.")
]
Select = Annotated[str, typer.Option(help="The rule; `fastdllm rules` lists them.")]
Cache = Annotated[str, typer.Option(help="none, prefix, dual, or prefix:32 to refresh it.")]
MaxTokens = Annotated[int, typer.Option(help="New tokens at most.")]
BlockSize = Annotated[int, typer.Option(help="Tokens in a block.")]
Think = Annotated[bool | None, typer.Option(help="Ask a LLaDA-V model to reason first, or not to.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
MaskId = Annotated[int | None, typer.Option(help="If the checkpoint does not name its mask token.")]
Shift = Annotated[
    bool | None, typer.Option(help="Whether position i is read at i - 1, if its config is silent.")
]


@app.command()
def generate(
    prompt: Annotated[
        str, typer.Argument(help="The prompt; - or nothing reads it from stdin.")
    ] = "-",
    model: Model = DEFAULT,
    select: Select = "frechet:0.25",
    cache: Cache = "prefix",
    max_tokens: MaxTokens = 256,
    block_size: BlockSize = 32,
    temperature: Annotated[float, typer.Option(help="0 takes the best token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draw from this much of the probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from this many of the best; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer.")] = None,
    early_stop: Annotated[bool, typer.Option(help="Stop at the end of text.")] = True,
    image: Annotated[
        list[Path] | None, typer.Option(help="A picture to ask about; repeat it for more.")
    ] = None,
    think: Think = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template around the prompt.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the canvas filling in.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Save every step to this file.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    mask_id: MaskId = None,
    shift: Shift = None,
) -> None:
    """Answer a prompt. The text goes to stdout, what it took to stderr.

    A prompt with holes such as "def f(x): [MASK:24] return y" is filled in instead.
    """
    from fastdllm.generation import Generation
    from fastdllm.tokenizer import HOLE
    from fastdllm.vision.images import open_image

    settings = Generation(
        max_tokens, block_size, select, cache, temperature, top_p, top_k, seed,
        tuple(stop or ()), early_stop, think,
    )  # fmt: skip
    text = _text(sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt))
    if not text.strip():
        raise InputError("the prompt is empty; write it after `generate`, or pipe it in")
    if trace is not None and not trace.absolute().parent.is_dir():
        raise InputError(f"there is no folder {trace.parent} to save the trace in; make it first")
    if image and (raw or HOLE.search(text)):
        raise InputError("images stand in a chat turn; leave out --raw and [MASK:n]")
    pictures = [open_image(path) for path in image or ()]  # a bad one is named before the wait
    llm = _load(model, dtype, device, mask_id, shift)
    if HOLE.search(text):
        done = llm.infill(text, settings, trace=trace is not None)
        print(done.text)
    else:
        row = llm.row(_prompt(llm, text, raw), settings, images=pictures)
        done = _answer(llm, row, settings, watch, trace is not None)
    _report(done)
    if trace is not None and done.trace is not None:
        done.trace.save(trace)
        print(f"trace: {trace}; look at it with: fastdllm trace {trace}", file=sys.stderr)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the prompt is not UTF-8 text: {error}") from None


def _prompt(llm: "LLM", text: str, raw: bool) -> "str | list[Message]":
    """A chat turn if the checkpoint chats."""
    if raw or llm.tokenizer is None or not llm.tokenizer.template:
        return text
    turn: list[Message] = [{"role": "user", "content": text}]
    return turn


def _load(
    model: str, dtype: str, device: str, mask_id: int | None = None, shift: bool | None = None
) -> "LLM":
    """Load with a progress bar, on stderr so that stdout stays the answer."""
    from rich.console import Console
    from rich.progress import Progress

    from fastdllm.llm import LLM

    if not model:
        raise InputError("no model was named; give --model tiny-llada, a folder or a hub id")
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        return LLM.load(
            model,
            dtype=dtype,
            device=device,
            mask_id=mask_id,
            shift=shift,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _answer(
    llm: "LLM", row: "Row", settings: "Generation", watch: bool, trace: bool
) -> "Completion":
    """Print the answer while it comes into being."""
    from fastdllm.llm import Run
    from fastdllm.viz.terminal import watch as show

    run = Run(llm, row, settings, trace)
    if watch:
        show(llm, row, run.steps())
    else:
        sent = ""
        for _ in run.steps():
            text = run.stable_text()
            print(text[len(sent) :], end="", flush=True)
            sent = text
        print(flush=True)  # before the figures, which go to stderr
    return run.completion()


def _report(done: "Completion") -> None:
    u = done.usage
    print(
        f"[{u.tokens} tokens, {u.nfe} forward passes, {u.tokens_per_nfe:.2f} tokens a pass, "
        f"{u.seconds:.2f} s, {u.tokens_per_second:.1f} tokens/s, ended by {done.finish_reason}]",
        file=sys.stderr,
    )


@app.command()
def chat(
    model: Model = DEFAULT,
    select: Select = "frechet:0.25",
    cache: Cache = "prefix",
    max_tokens: MaxTokens = 256,
    block_size: BlockSize = 32,
    think: Think = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    mask_id: MaskId = None,
    shift: Shift = None,
) -> None:
    """Talk to a model. Inside: /select, /cache, /tokens, /image, /reset, /help, /quit."""
    from fastdllm.generation import Generation
    from fastdllm.viz.chat import converse

    settings = Generation(max_tokens, block_size, select, cache, think=think)
    converse(_load(model, dtype, device, mask_id, shift), settings)


@app.command()
def train(
    output: Annotated[Path, typer.Option(help="The folder of the run; it resumes what is there.")],
    recipe: Annotated[
        str,
        typer.Option(help="A recipe file, or one that comes along, such as tiny-llada-base."),
    ] = "",
    init: Annotated[str, typer.Option(help="A checkpoint folder or hub id to go on from.")] = "",
    task: Annotated[
        list[str] | None, typer.Option(help="A task to learn, with a weight: lists=2. Repeat it.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="JSONL with prompt and answer.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any key of the recipe: family=Dream, steps=500, batch, lr, matrix_lr, warmup, "
            "optimizer=adamw, decay, ema, clip, canvas, context, block_size, tails, seed, "
            "mode=pretrain, layers, width, heads, mlp, vocab ...",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Of each process; 0: torch decides.")] = 0,
    device: Device = "auto",
    save_every: Annotated[int, typer.Option(min=1, help="Steps between states.")] = 200,
    eval_every: Annotated[int, typer.Option(min=0, help="Steps between evaluations.")] = 0,
    eval_count: Annotated[
        int, typer.Option(min=1, max=1000, help="Held-out problems of each.")
    ] = 32,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Evaluate tasks that run what it wrote.")
    ] = False,
) -> None:
    """Train a masked diffusion model, from scratch or from a checkpoint.

    A small one, in minutes:  fastdllm train --output run --task lists --set steps=300

    Your own data:  fastdllm train --output run --data pairs.jsonl --init path/to/checkpoint

    On two cores:  torchrun --nproc-per-node 2 -m fastdllm train --threads 1 ...

    Kill it at any moment: the same command goes on from the last state.
    """
    import torch

    from fastdllm.models.loading import pick_device
    from fastdllm.training.recipe import choose
    from fastdllm.training.run import run

    chosen = choose(recipe, init=init, tasks=task or [], data=data, values=set_ or [])
    if threads:
        torch.set_num_threads(threads)
    run(
        chosen,
        output,
        device=pick_device(device),
        save_every=save_every,
        eval_every=eval_every,
        eval_count=eval_count,
        code=allow_code_execution,
    )


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="A trace saved by `generate --trace`.")],
    output: Annotated[
        Path | None, typer.Option(help="The page; beside the trace if left out.")
    ] = None,
) -> None:
    """Turn a saved trace into a page to look at: canvas, profile, score, tokens per step."""
    from fastdllm.tracing import Trace
    from fastdllm.viz.html import write_page

    page = output or file.with_suffix(".html")
    if page == file:
        raise InputError(f"the page would overwrite {file}; name another with --output")
    if not page.absolute().parent.is_dir():
        raise InputError(f"there is no folder {page.parent}; make it first")
    write_page(Trace.load(file), page)
    print(page)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="tiny-llada, a model folder or a hub id.")],
    length: Annotated[int, typer.Option(min=1, help="Prompt and new tokens together.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 1,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block.")] = 32,
    dtype: Dtype = "auto",
) -> None:
    """Say what a checkpoint is and what it will take, without loading it."""
    from fastdllm.models.inspect import describe

    describe(model, dtype, length, batch, block_size)


@app.command()
def rules() -> None:
    """List the rules that decide which masked tokens are committed together."""
    from fastdllm.selection import RULES

    for rule in RULES.values():
        example = "topk:4" if rule.name == "topk" else str(rule())
        print(f"{example:15} {(rule.__doc__ or '').splitlines()[0]}")


@app.command()
def demo(
    model: Model = DEFAULT,
    problems: Annotated[int, typer.Option(min=1, max=1000, help="How many to compare on.")] = 60,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems decoded together.")] = 60,
    page: Annotated[Path, typer.Option(help="Where to write the trace's page.")] = Path(
        "fastdllm-demo.html"
    ),
) -> None:
    """Watch a word problem being solved, then compare rules and caches on many."""
    from fastdllm.bench.demo import show

    if not page.absolute().parent.is_dir():
        raise InputError(f"there is no folder {page.parent}; make it first")
    show(model, problems, batch_size, page.absolute())


TaskName = Annotated[
    str,
    typer.Option(
        help="word-problems, algebra, functions, lists, shapes; gsm8k, math, humaneval, mbpp, "
        "mathvista or mathverse."
    ),
]
Limit = Annotated[int | None, typer.Option(help="The first so many problems; else all.")]
Skip = Annotated[
    int,
    typer.Option(min=0, help="Leave out the first so many: choose on some, show on others."),
]
Data = Annotated[Path | None, typer.Option(help="A benchmark's file or folder; else the hub.")]
Images = Annotated[
    Path | None, typer.Option(help="The folder of a benchmark's pictures; else beside --data.")
]
Shots = Annotated[
    int | None, typer.Option(min=0, help="Worked examples; a benchmark knows its own.")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code-execution", help="Run code the model wrote, in a sandbox.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Problems decoded together.")]
Timed = Annotated[
    int,
    typer.Option(
        "--batch-size", min=1,
        help="Problems decoded together. With 1, as the paper times, the rules take turns problem "
        "by problem; with more, batch by batch.",
    ),
]  # fmt: skip
Kind = Annotated[str, typer.Option(help="Only problems of these kinds (lists: copy,sort).")]
Output = Annotated[
    Path | None, typer.Option(help="A folder for every answer; the same command resumes it.")
]


@app.command("eval")
def evaluate(
    task: TaskName,
    model: Model = DEFAULT,
    select: Annotated[str, typer.Option(help="Rules, with commas between.")] = "full,frechet:0.25",
    cache: Annotated[str, typer.Option(help="Caches, with commas between.")] = "prefix",
    limit: Limit = None,
    skip: Skip = 0,
    data: Data = None,
    images: Images = None,
    shots: Shots = None,
    allow_code_execution: AllowCode = False,
    batch_size: Timed = 1,
    max_tokens: MaxTokens = 256,
    block_size: BlockSize = 32,
    think: Think = None,
    kind: Kind = "",
    output: Output = None,
    judge_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible address, for tasks that ask a judge.")
    ] = "",
    judge_model: Annotated[str, typer.Option(help="The judge's name there.")] = "",
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Accuracy with its 95 % interval, forward passes and speed, on a task's problems.

    The first rule and cache are what the others are measured against; p is McNemar's exact test on
    the same problems. The last line is JSON.

    mathvista and mathverse are scored by rules, and by a judge model too if one is named; its key
    is read from FASTDLLM_JUDGE_KEY or OPENAI_API_KEY.
    """
    import json
    from dataclasses import replace

    from rich.console import Console

    from fastdllm.eval.judge import Judge, judged
    from fastdllm.eval.report import as_json, by_group, group_table, measure, table
    from fastdllm.eval.task import chosen
    from fastdllm.generation import Generation
    from fastdllm.selection import parse_many
    from fastdllm.team import Team

    known, every, problems = chosen(
        task, data, shots, limit, kind, allow_code_execution, images, skip
    )
    judge = None
    if judge_url or judge_model:
        if not judge_url or not judge_model or known.judge is None:
            raise InputError("a judge wants --judge-url, --judge-model and a task that asks one")
        judge = Judge(judge_url, judge_model, output and output / "judge" / "replies.jsonl")
    base = Generation(max_tokens, block_size, stop=known.stop, think=think)
    settings = [
        replace(base, select=rule, cache=name)
        for rule in parse_many(select)
        for name in cache.split(",")
    ]
    llm = _load(model, dtype, device)
    sheets = measure(llm, known, every, problems, settings, batch_size, output, shots)
    if Team.here().rank:
        return
    title = f"{llm.name} on {len(problems)} problems of {task}, {known.metric}"
    Console().print(table(title, sheets))
    last = {"model": llm.name, "task": task, "kind": kind, "metric": known.metric}
    results = as_json(sheets)
    verdicts = []
    for sheet, result in zip(sheets, results, strict=True):
        if judge is None:
            break
        found = judged(judge, known, problems, sheet.lines)
        verdicts.append(found.verdicts)
        result["judged"] = {"by": judge_model, **found.as_json()}
        failed = f"; {found.failed} failed ({judge.trouble}), counted as wrong"
        print(
            f"{sheet.settings.rule}, {sheet.settings.cache}: {found.accuracy:.1%} judged by "
            f"{judge_model} in our words{failed if found.failed else ''}"
        )
    if groups := by_group(problems, sheets, verdicts):
        Console().print(group_table(groups))
    if verdicts and output is not None:
        (output / "judge").mkdir(exist_ok=True)
        (output / "judge" / "results.json").write_text(
            json.dumps({"judge": judge_model, "results": results, "groups": groups}, indent=2)
            + "\n"
        )
    print(json.dumps({**last, "results": results, "groups": groups}))


@app.command()
def calibrate(
    output: Annotated[Path, typer.Option(help="Where to write it, as JSON; figures beside it.")],
    task: Annotated[str, typer.Option(help="A task, as for eval.")] = "",
    data: Annotated[
        Path | None, typer.Option(help="JSONL with prompt and answer; or the task's file.")
    ] = None,
    model: Model = DEFAULT,
    select: Annotated[str, typer.Option(help="The rule whose states are measured.")] = (
        "frechet:0.25"
    ),
    against: Annotated[
        str, typer.Option(help="What is right: the reference answer, or the full-step result.")
    ] = "reference",
    level: Annotated[
        float, typer.Option(help="How likely any range may be worse than it says.")
    ] = 0.05,
    limit: Annotated[int, typer.Option(min=2, help="Problems to measure on.")] = 200,
    check: Annotated[int, typer.Option(min=0, help="Fresh problems to check it on.")] = 50,
    batch_size: BatchSize = 16,
    block_size: BlockSize = 32,
    images: Images = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Measure how far a model's doubts can be trusted, for `frechet:0.25,calibration=FILE`.

    A task that is generated is measured on training problems, so that its held-out ones stay
    fresh; a benchmark on its last problems, of which `eval --limit` asks the first. The last line
    is JSON.
    """
    import json
    from dataclasses import replace
    from functools import partial

    from rich.progress import Progress

    from fastdllm.bench.drawings import check as check_drawing
    from fastdllm.bench.drawings import reliability
    from fastdllm.eval.calibrate import coverage, coverage_text, fingerprint, fit, fresh, watch
    from fastdllm.eval.task import get
    from fastdllm.selection import parse

    check_drawing()
    if not 0 < level < 1:
        raise InputError(f"the level is {level}; wanted a number in (0, 1), try 0.05")
    if against not in ("reference", "full"):
        raise InputError(f"against is '{against}'; wanted reference or full")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InputError(f"{output} cannot be written; name a file in a folder that exists")
    name, problems = fresh(task, data, limit + check, images)
    known = get(task) if task else None
    rule = parse(select)
    llm = _load(model, dtype, device)
    with Progress(transient=True) as bar:
        ticket = bar.add_task("decoding", total=len(problems))
        measure = partial(
            watch, llm, against=against, block=block_size, batch=batch_size,
            chat=known is None or known.chat, stop=known.stop if known else (),
            progress=lambda done: bar.advance(ticket, done),
        )  # fmt: skip
        seen = measure(problems[:limit], rule)
        made = fit(llm, seen, path=str(output), data=f"{name}, {fingerprint(problems[:limit])}",
                   rule=rule, against=against, level=level)  # fmt: skip
        calibrated = replace(rule, calibration=made)
        found = coverage(measure(problems[limit:], calibrated).steps if problems[limit:] else ())
    made.save()
    title = f"{llm.name}, {made.data}, {len(seen.right):,} tokens"
    for path in [output, *reliability(made, title, output)]:
        print(path)
    print(coverage_text(found))
    print(json.dumps({"calibration": str(output), "temperature": made.temperature,
                      "upper": list(made.upper), "coverage": found}))  # fmt: skip


@app.command()
def tune(
    task: TaskName,
    model: Model = DEFAULT,
    rule: Annotated[
        str, typer.Option(help="The rule to set; frechet:0.5/0.25 names the values to try.")
    ] = "frechet",
    baseline: Annotated[str, typer.Option(help="What it is held against.")] = "full",
    target_accuracy_drop: Annotated[
        float, typer.Option(help="In points: how much worse it may be.")
    ] = 0.5,
    level: Annotated[float, typer.Option(help="How likely the answer may be wrong.")] = 0.05,
    cache: Cache = "prefix",
    limit: Limit = None,
    skip: Skip = 0,
    data: Data = None,
    images: Images = None,
    shots: Shots = None,
    allow_code_execution: AllowCode = False,
    batch_size: BatchSize = 32,
    max_tokens: MaxTokens = 256,
    block_size: BlockSize = 32,
    kind: Kind = "",
    output: Output = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Find the boldest setting of a rule that is not worse than a baseline by more than a target.

    Settings are tried from careful to bold, each by a test one may stop at any time; the first that
    does not pass ends it. The last line is JSON.
    """
    import json
    from dataclasses import asdict, replace

    from fastdllm.bench.sweep import grid
    from fastdllm.eval.run import Sheet, about, claim
    from fastdllm.eval.task import chosen
    from fastdllm.eval.tune import needed
    from fastdllm.eval.tune import tune as trials
    from fastdllm.generation import Generation
    from fastdllm.team import Team

    if Team.here().size > 1:
        raise InputError("tune decides problem by problem, in one process; run it without torchrun")
    if not 0 < level < 1:
        raise InputError(f"the level is {level}; wanted a number in (0, 1), try 0.05")
    if not 0 < target_accuracy_drop < 100:
        raise InputError(f"the target is {target_accuracy_drop} points; wanted more than 0")
    known, every, problems = chosen(
        task, data, shots, limit, kind, allow_code_execution, images, skip
    )
    base = Generation(max_tokens, block_size, baseline, cache, stop=known.stop)
    settings = [replace(base, select=one) for one in grid([rule])]
    llm = _load(model, dtype, device)
    if output is not None:
        claim(output, about(llm, known, every, shots, batch_size))
    sheets = {one: Sheet(output, one, problems=problems) for one in (base, *settings)}
    enough = needed(target_accuracy_drop / 100, level)
    if enough > len(problems):
        print(
            f"{len(problems)} problems: a rule that answers each of them as {baseline} does wants "
            f"{enough} to show {target_accuracy_drop:g} points",
            file=sys.stderr,
        )
    found = []

    def tell(trial: "Trial") -> None:
        if sys.stderr.isatty():
            print(trial, end="\r", file=sys.stderr)

    for trial in trials(
        llm, known, problems, sheets[base], [sheets[one] for one in settings],
        target=target_accuracy_drop / 100, level=level, batch=batch_size, tell=tell,
    ):  # fmt: skip
        print(trial)
        found.append(trial)
    best = next((trial for trial in reversed(found) if trial.passed), None)
    if best is None:
        print(
            f"No setting of {rule} is shown to be within {target_accuracy_drop:g} points of "
            f"{baseline} on {found[-1].count} problems; more problems or a larger target may do."
        )
    else:
        print(
            f"{best.select}: {best.saved:.0%} fewer forward passes than {baseline}, and at most "
            f"{target_accuracy_drop:g} points less accurate, with {1 - level:.0%} confidence; the "
            f"drop is between {100 * best.interval[0]:.1f} and {100 * best.interval[1]:.1f} points."
        )
    print(json.dumps({"model": llm.name, "task": task, "best": best and best.select,
                      "trials": [asdict(trial) for trial in found]}))  # fmt: skip


@app.command()
def sweep(
    task: TaskName,
    output: Annotated[Path, typer.Option(help="A folder for answers and figures; it resumes.")],
    model: Model = DEFAULT,
    rules: Annotated[
        str, typer.Option(help="With commas between; threshold:0.7/0.9 names its values.")
    ] = "threshold,factor,frechet",
    cache: Cache = "prefix",
    limit: Limit = None,
    skip: Skip = 0,
    data: Data = None,
    images: Images = None,
    shots: Shots = None,
    allow_code_execution: AllowCode = False,
    batch_size: Timed = 1,
    max_tokens: MaxTokens = 256,
    block_size: BlockSize = 32,
    think: Think = None,
    kind: Kind = "",
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Rules over a grid of their parameters: the frontier of accuracy against passes and speed.

    Writes sweep.csv and .json, fig-frontier.svg and .png. An area is the mean accuracy over every
    budget, of passes or of time for a token, up to that of the dearest point. The last line is
    JSON.
    """
    import json
    from dataclasses import replace

    from rich.console import Console

    from fastdllm.bench.drawings import check, draw
    from fastdllm.bench.sweep import areas, grid, points, write
    from fastdllm.eval.report import measure, table
    from fastdllm.eval.task import chosen
    from fastdllm.generation import Generation
    from fastdllm.selection import split_rules
    from fastdllm.team import Team

    check()
    known, every, problems = chosen(
        task, data, shots, limit, kind, allow_code_execution, images, skip
    )
    base = Generation(max_tokens, block_size, cache=cache, stop=known.stop, think=think)
    settings = [replace(base, select=rule) for rule in ["full", *grid(split_rules(rules))]]
    llm = _load(model, dtype, device)
    sheets = measure(llm, known, every, problems, settings, batch_size, output, shots)
    if Team.here().rank:
        return
    title = f"{llm.name} on {len(problems)} problems of {task}, {cache} cache, {known.metric}"
    Console().print(table(title, sheets))
    found = points(sheets)
    for path in [*write(found, title, output), *draw("fig-frontier", found, title, output)]:
        print(path)
    print(json.dumps({"model": llm.name, "task": task, "areas": areas(found), "points": found}))


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="table1, table2, table-v, table-dream, table-cache, fig-frontier, fig-steps, "
            "fig-blocks, fig-margin, fig-cache-scatter, divergence or all; and, beyond the paper, "
            "fig-rules."
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="A folder or hub id; else an embedded model.")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="A folder with a benchmark in each subfolder; else the hub.")
    ] = None,
    images: Images = None,
    limit: Annotated[
        int | None, typer.Option(help="Problems a row; 20 of an embedded model's, else all.")
    ] = None,
    allow_code_execution: AllowCode = False,
    batch_size: Timed = 1,
    output: Annotated[Path, typer.Option(help="Where answers and tables go; it resumes.")] = Path(
        "reproduction"
    ),
    calibration: Annotated[
        Path | None, typer.Option(help="Of `fastdllm calibrate`, for fig-rules.")
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Measure a table or figure of the paper, beside what the paper prints.

    An embedded model answers its own little siblings of the benchmarks; without --model each
    experiment has the one that is its model's. Look at it all with `fastdllm report`. The last line
    is JSON.
    """
    import json

    from fastdllm.bench import reproduce as paper
    from fastdllm.bench.drawings import check, draw
    from fastdllm.eval.task import get
    from fastdllm.models.loading import EMBEDDED
    from fastdllm.team import Team

    check()
    names = paper.names(name, model)
    own = all(who in EMBEDDED for who in names.values())
    if own and (data is not None or images is not None):
        raise InputError("an embedded model answers its own tasks; leave out --data and --images")
    if calibration is not None and "fig-rules" not in names:
        raise InputError(f"{name} uses no calibration; it is for fig-rules")
    models = {one: _load(one, dtype, device) for one in dict.fromkeys(names.values())}
    todo = {
        one: paper.cells(one, paper.taught(who), models[who].eyes is not None, calibration)
        for one, who in names.items()
    }
    for task in {cell.task for rows in todo.values() for cell in rows}:
        get(task).check_allowed(allow_code_execution)
    for one, who in names.items():
        paper.check_output(one, models[who].name, output)
    for one, rows in todo.items():
        llm = models[names[one]]
        count = 20 if names[one] in EMBEDDED and limit is None else limit
        sheets = paper.run(llm, rows, data, count, batch_size, output, images)
        if Team.here().rank:
            continue
        found, more = paper.figures(rows, sheets), paper.extra(one, rows, sheets)
        paper.show(f"{one}: {llm.name}", found)
        if one == "divergence":
            print(paper.differences(more))
        written = paper.write(one, llm, found, more, output)
        title = f"{one}: {llm.name}, {paper.problems_of(found)}"
        written += draw(one, found, title, output, more)
        print("\n".join(map(str, written)))
    if not Team.here().rank:
        print(json.dumps({"experiments": names, "output": str(output)}))


@app.command(
    "lm-eval",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def lm_eval(context: typer.Context) -> None:
    """lm-evaluation-harness on our engine, with its own arguments: --model fastdllm.

    --model_args pretrained=MODEL,select=frechet:0.25,cache=prefix,max_tokens=256,block_size=32
    """
    try:
        from fastdllm.eval.harness import main as run
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is missing; try: pip install 'fastdllm[eval]'") from None
    run(context.args)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The --output of eval, sweep or reproduce.")],
) -> None:
    """Write report.html: every table, figure and setting of a folder, on one page."""
    from fastdllm.bench.report import write

    print(write(folder))


@app.command()
def oracle(
    select: Annotated[
        str, typer.Option(help="Rules to compare, with spaces between.")
    ] = ORACLE_RULES,
    sequences: Annotated[int, typer.Option(min=1, help="How many sequences to decode.")] = 16,
    length: Annotated[int, typer.Option(min=2, help="Tokens in each sequence.")] = 64,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31, help="Of the oracle, the sequences and the hints.")
    ] = 0,
) -> None:
    """Hold rules to the truth on an oracle: a denoiser whose probabilities are exactly right.

    Sequences of a hidden Markov model, one token in seven given as a hint. Every commit is held
    to the true joint arg-max, so an error in the table is the rule's own and nobody else's.
    """
    from fastdllm.bench.oracle import compare

    compare(select.split(), sequences, length, seed)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="Which one: profile.")],
    output: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("docs/figures"),
) -> None:
    """Draw a figure of the docs as SVG and PNG."""
    if name != "profile":
        raise InputError(f"unknown figure '{name}'; {did_you_mean(name, ['profile'])}")
    try:
        from fastdllm.bench.figures import profile_figure
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is missing; try: pip install 'fastdllm[plots]'") from None
    for path in profile_figure(output):
        print(path)
