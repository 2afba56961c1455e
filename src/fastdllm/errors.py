"""Every error this package raises on purpose, and the exit code the command line gives it.

    FastDLLMError                     1
    ├── InputError (ValueError)       2   a value, shape or dtype the caller can mend
    │   └── CheckpointError           2   a model folder that is incomplete, damaged or unknown
    ├── LogitsError (ArithmeticError) 3   a model that returned NaN, +inf, or nothing but -inf
    └── DivergedError (ArithmeticError) 4  a training whose loss is no number any more

A message says what was given, what was wanted, and what to try.
"""

import difflib
from collections.abc import Iterable


class FastDLLMError(Exception):
    """The root: catch this to catch them all."""

    exit_code = 1


class InputError(FastDLLMError, ValueError):
    """Something the caller gave is wrong."""

    exit_code = 2


class CheckpointError(InputError):
    """A checkpoint cannot be loaded as it is."""


class LogitsError(FastDLLMError, ArithmeticError):
    """A model returned logits from which no token can be read."""

    exit_code = 3


class DivergedError(FastDLLMError, ArithmeticError):
    """A training run left the numbers."""

    exit_code = 4


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The nearest option as a question, or all of them.

    >>> did_you_mean("frechett", ["factor", "frechet"])
    "did you mean 'frechet'?"
    >>> did_you_mean("zzz", ["factor", "frechet"])
    'choose from factor, frechet'
    """
    options = list(options)
    near = difflib.get_close_matches(word, options, n=1)
    return f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(options)}"
