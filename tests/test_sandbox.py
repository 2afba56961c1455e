"""Generated code is hostile: what it tries, and that it fails at it."""

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fastdllm import InputError
from fastdllm.eval import sandbox
from fastdllm.eval.guard import threads_of
from fastdllm.eval.sandbox import Limits, check, passes, runs

QUICK = Limits(seconds=2, memory=512 << 20)
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's doors are Linux's")


def test_code_is_judged_by_what_it_does() -> None:
    tests = ["assert f([1, 2]) == 3"]
    assert passes("def f(x):\n    return sum(x)", tests)
    assert not passes("def f(x):\n    return 3 if x == [2, 1] else 0", tests)
    assert not passes("def f(x:\n", tests)
    assert not passes("", tests)
    assert not passes("def f(x): return 3\nraise ValueError", tests)


@pytest.mark.parametrize(
    "code",
    [
        "from collections import namedtuple\nP = namedtuple('P', 'a')\nassert P(1).a == 1",
        "import enum, dataclasses, typing, re, math, heapq, itertools, functools, bisect, string",
        "import numpy\nassert numpy.arange(3).sum() == 3",
        "if __name__ == '__main__':\n    pass\nelse:\n    raise ValueError",
        "open('mine', 'w').write('x')\nassert open('mine').read() == 'x'",
        "import sys\nsys.stdout.close()",
        "import tempfile, threading\nt = threading.Thread(target=int)\nt.start()\nt.join()",
        "print('x' * 10**7)",
        "import random, datetime, json, collections, copy, operator, statistics, decimal",
    ],
)
def test_honest_code_runs(code: str) -> None:
    assert runs(code, Limits())


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "while True: print('x' * 1000)",
        "x = [0] * 10**10",
        "x = 'a'\nwhile True: x += x",
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "raise SystemExit",
        "raise KeyboardInterrupt",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.killpg(0, 9)",
        "import socket\nsocket.create_connection(('127.0.0.1', 80))",
        "import ctypes\nctypes.CDLL(None).getpid()",
        "open('big', 'wb').write(b'x' * (64 << 20))",
        "files = [open('/dev/null') for _ in range(1000)]",
        "def f(): f()\nf()",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        "import os\nos.abort()",
        "\x00",
        "import os\nfor fd in range(3, 9):\n try: os.write(fd, b'a' * 32)\n except OSError: 1\n1/0",
        "import builtins, os\nbuiltins.exec = os._exit = lambda *a: None\nassert False",
        "import threading\nthreading.Thread.join = lambda *a: None\nraise ValueError",
        "import sys\nsys._getframe(1).f_locals['passed'].append(True)\nraise SystemExit",
        "try: 1 / 0\nexcept Exception as e: f = e.__traceback__.tb_frame\n"
        "while f.f_back: f = f.f_back\nf.f_locals['passed'].append(1)\nraise SystemExit",
    ],
)  # fmt: skip
def test_hostile_code_fails_within_its_time(code: str) -> None:
    start = time.monotonic()
    assert not runs(code, QUICK)
    assert time.monotonic() - start < 20  # a noisy machine's two seconds


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    assert runs("import os\nassert 'TOKEN' not in os.environ and 'HOME' not in os.environ", QUICK)


@linux
def test_nothing_is_written_outside(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    for code in (
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(tmp_path / 'there')!r}, 'a').write('x')",
        f"import os\nos.remove({str(tmp_path / 'there')!r})",
        f"import os\nos.rename({str(tmp_path / 'there')!r}, 'here')",
        f"import os\nos.mkdir({str(tmp_path / 'folder')!r})",
    ):
        assert not runs(code, QUICK), code
    assert [p.read_text() for p in tmp_path.iterdir()] == ["mine"]


@linux
def test_no_socket_is_reached_even_past_python(tmp_path: Path) -> None:
    """By the raw module, whose events are the same; and the namespace has no route besides."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        heard: list[object] = []

        def listen() -> None:
            server.settimeout(3)
            with suppress(TimeoutError):
                heard.append(server.accept())

        thread = threading.Thread(target=listen)
        thread.start()
        assert not runs(f"import _socket\n_socket.socket().connect(('127.0.0.1', {port}))", QUICK)
        thread.join()
        assert not heard


@linux
def test_no_child_outlives_the_verdict(tmp_path: Path) -> None:
    """Past the audit hook: a C function that forks without asking Python."""
    marker = f"sleep-{os.getpid()}-{time.monotonic_ns()}"
    code = (
        "import _posixsubprocess, os, sys\n"
        "r, w = os.pipe()\n"
        f"args = [b'/bin/sh', b'-c', b'sleep 30 # {marker}']\n"
        "_posixsubprocess.fork_exec(args, [b'/bin/sh'], True, (w,), None, None, -1, -1, -1, -1,"
        " -1, -1, r, w, False, False, 0, -1, None, -1, None, -1, None)\n"
    )
    runs(code, QUICK)
    time.sleep(0.2)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert marker.encode() not in process.read_bytes()
        except OSError:
            continue


def test_a_sandbox_that_fails_honest_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    monkeypatch.setattr(sandbox, "GUARD", Path("/nowhere/guard.py"))
    with pytest.raises(InputError, match="cannot run code"):
        check()


def test_the_limit_on_processes_leaves_room_for_what_runs_already() -> None:
    before = threads_of(os.getuid())
    idle = threading.Event()
    more = [threading.Thread(target=idle.wait) for _ in range(5)]
    for thread in more:
        thread.start()
    assert threads_of(os.getuid()) >= before + 3  # others come and go
    idle.set()


def test_a_program_too_long_for_a_pipe_arrives() -> None:
    assert runs("x = '" + "a" * 500_000 + "'\nassert len(x) == 500000", Limits())
