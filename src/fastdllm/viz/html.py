"""A trace as one self-contained page: canvas, sorted profile, score curve, tokens per step."""

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from fastdllm import certificate
from fastdllm.selection import parse
from fastdllm.tracing import Trace


def trace_page(trace: Trace) -> str:
    """The page, with the trace inside it. It loads nothing from anywhere."""
    template = files("fastdllm.viz").joinpath("trace.html").read_text(encoding="utf-8")
    # Whatever the tokens say: no "<" can end the script early or open another.
    data = json.dumps(_data(trace), ensure_ascii=False).replace("<", "\\u003c")
    title = escape(f"{trace.model}: {trace.select}, cache {trace.cache}")
    return template.replace("__TITLE__", title).replace("__DATA__", data)


def write_page(trace: Trace, path: Path) -> None:
    """Write it, whole or not at all."""
    half = path.with_name(path.name + ".part")
    half.write_text(trace_page(trace), encoding="utf-8")
    half.replace(path)


def _data(trace: Trace) -> dict[str, Any]:
    rule = parse(trace.select.partition(",calibration=")[0])  # its file may be elsewhere by now
    margin = getattr(rule, "margin", None)
    end = max((p for step in trace.steps for p in step.positions), default=trace.origin - 1) + 1
    return {
        "model": trace.model,
        "select": trace.select,
        "cache": trace.cache,
        "block": trace.block_size,
        "margin": margin,
        "origin": trace.origin,
        "end": end,
        "mask": trace.mask_id,
        "canvas": trace.canvas,
        "pieces": {str(k): v for k, v in trace.pieces.items()},
        "steps": [
            {
                "window": [step.window.start, step.window.stop],
                "positions": step.positions,
                "tokens": step.tokens,
                "doubts": [float(f"{d:.4g}") for d in step.doubts],
                "committed": step.committed,
                "raised": [float(f"{d:.4g}") for d in step.raised],
                "taken_back": step.taken_back,
                "score": [
                    float(f"{g:.4g}")
                    for g in certificate.score(
                        torch.tensor(step.raised or step.doubts).clamp(0, 1)
                    ).tolist()
                ],
            }
            for step in trace.steps
        ],
    }
