"""Fast-dLLM++: faster decoding for masked diffusion language models, with a certificate.

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
    from fastdllm.errors import FastDLLMError, InputError, LogitsError
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

__all__ = [
    "Entropy",
    "Exact",
    "Factor",
    "FastDLLMError",
    "Frechet",
    "Full",
    "InputError",
    "LogitsError",
    "Profile",
    "Selector",
    "Threshold",
    "TopK",
    "__version__",
    "parse",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `fastdllm --help` should not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fastdllm' has no attribute '{name}'")
    home = "errors" if name.endswith("Error") else "selection"
    return getattr(import_module(f"fastdllm.{home}"), name)
