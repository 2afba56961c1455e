"""Fast-dLLM++: faster decoding for masked diffusion language models, with a certificate.

    from fastdllm import LLM, Generation
    llm = LLM.load("path/to/checkpoint")         a folder or a hub id
    llm.generate("Tom has 12 ...", Generation(select="frechet:0.25", cache="dual"))

    from fastdllm import Frechet
    Frechet(0.25).commit(confidence, masked)     a decision for any decoder's confidences

    from fastdllm.predict import predict
    predict(logits, masked, forbidden=(mask,))   logits to profile, without a soft-max copy

The mathematics is in `fastdllm.certificate`, exact test models in `fastdllm.testing`, Fast-dLLM's
own function shapes in `fastdllm.compat`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdllm.errors import CheckpointError, FastDLLMError, InputError, LogitsError
    from fastdllm.generation import Completion, Generation, Usage
    from fastdllm.llm import LLM
    from fastdllm.selection import (
        Entropy,
        Exact,
        Factor,
        Frechet,
        Full,
        Profile,
        Selector,
        Threshold,
        TopK,
        parse,
    )

__version__ = "0.1.0.dev0"

_HOME = {
    "CheckpointError": "errors",
    "Completion": "generation",
    "Entropy": "selection",
    "Exact": "selection",
    "Factor": "selection",
    "FastDLLMError": "errors",
    "Frechet": "selection",
    "Full": "selection",
    "Generation": "generation",
    "InputError": "errors",
    "LLM": "llm",
    "LogitsError": "errors",
    "Profile": "selection",
    "Selector": "selection",
    "Threshold": "selection",
    "TopK": "selection",
    "Usage": "generation",
    "parse": "selection",
}

__all__ = [
    "LLM",
    "CheckpointError",
    "Completion",
    "Entropy",
    "Exact",
    "Factor",
    "FastDLLMError",
    "Frechet",
    "Full",
    "Generation",
    "InputError",
    "LogitsError",
    "Profile",
    "Selector",
    "Threshold",
    "TopK",
    "Usage",
    "__version__",
    "parse",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `fastdllm --help` should not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fastdllm' has no attribute '{name}'")
    return getattr(import_module(f"fastdllm.{_HOME[name]}"), name)
