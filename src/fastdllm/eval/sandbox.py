"""Running generated code, which is hostile until shown otherwise.

Every program runs in a process of its own (`guard.py`): isolated Python, an empty environment, a
private temporary folder as working directory, nothing on stdin, stdout and stderr thrown away, and
limits on CPU time, wall time, memory, file size, open files and processes. On Linux the kernel also
gives it no network, no way to signal other processes, no program to start, and no file to write to
outside its folder (namespaces and Landlock, where the kernel allows them); Python's audit hooks
refuse sockets, new processes and interpreters, signals, foreign libraries and changes of a file's
owner or mode on every system. Afterwards its whole process group is ended.

What this does not protect from: code that breaks the kernel or the interpreter, or digs its verdict
out of the process's memory; reading files that you can read, and the names of what runs (it cannot
send them anywhere, or keep them); a function that returns an object equal to everything, and so
passes any test; many files in its own folder, each within the limit, until it ends and they are
deleted. Where the kernel refuses namespaces and Landlock, as without Linux and in many containers,
only the limits and the audit hooks stand, and those a determined program can get around: it may
then reach the network and leave a process behind. For models you have reason to fear, use a machine
you can throw away.
"""

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastdllm.errors import InputError
from fastdllm.eval.scoring import essentials

GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 10.0
    """By the clock; CPU time is limited to the same, rounded up."""
    memory: int = 1 << 30
    file_size: int = 16 << 20
    open_files: int = 64
    processes: int = 64

    def as_rlimits(self) -> dict[str, int]:
        """The names `resource` knows them by."""
        return {
            "RLIMIT_CPU": int(self.seconds) + 1,
            "RLIMIT_AS": self.memory,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
        }


def check() -> None:
    """Complain if not even an empty program passes here: every answer would count as wrong."""
    if not passes("x = 1", ["assert x == 1"]):
        raise InputError(
            "the sandbox cannot run code on this machine: a program that does nothing failed; try "
            "another machine, or a container that may start processes"
        )


def passes(code: str, tests: Sequence[str], limits: Limits | None = None) -> bool:
    """Whether the code, and then every test, runs without an exception.

    >>> passes("def f(x): return x + 1", ["assert f(1) == 2"])
    True
    """
    if not code.strip():
        return False
    return runs("\n".join([essentials(code), *tests]), limits or Limits())


def runs(program: str, limits: Limits) -> bool:
    """Whether a program comes to its end without an exception, within its limits."""
    secret = secrets.token_hex(16)  # the process must say it, and learns it only to say it
    receive, send = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-I", str(GUARD), json.dumps(limits.as_rlimits()), str(send)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            pass_fds=[send],
            start_new_session=True,
        )
        os.close(send)
        try:
            _hand_over(process, json.dumps({"program": program, "secret": secret}))
            return _read(receive, limits.seconds) == secret.encode()
        finally:
            os.close(receive)
            _end(process)


def _hand_over(process: "subprocess.Popen[bytes]", job: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(job.encode())
        process.stdin.close()


def _read(pipe: int, seconds: float) -> bytes:
    """What comes through the pipe before the time is up, and no more of it than a secret."""
    found, deadline = b"", time.monotonic() + seconds
    while len(found) <= 32 and (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([pipe], [], [], left)
        piece = os.read(pipe, 64) if ready else b""
        if not piece:
            break
        found += piece
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The whole group, children too."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
