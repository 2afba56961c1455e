"""Running generated code: a process of its own, with a time limit.

This keeps an endless loop or a crash from ending the evaluation. It does not keep code from
reading or writing files: run it on models you trust.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress

SECONDS = 5.0


def passes(code: str, tests: Sequence[str], seconds: float = SECONDS) -> bool:
    """Whether the code, and then every test, runs without an exception.

    >>> passes("def f(x): return x + 1", ["assert f(1) == 2"])
    True
    """
    if not code.strip():
        return False
    # A code that ends the process early must not look like one that passed.
    program = "\n".join([code, *tests, "import sys; sys.stdout.write('passed')"])
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    return process.returncode == 0 and out.endswith(b"passed")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The whole group, children too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
