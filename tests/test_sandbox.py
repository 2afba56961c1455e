"""Generated code is hostile: what it tries, and that it fails at it."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from fastdllm import InputError
from fastdllm.eval import guard, sandbox
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
        "import _xxsubinterpreters as s\ns.run_string(s.create(), 'import sys\\n"
        "for f in sys._current_frames().values():\\n while f:\\n  f.f_locals.get(\"passed\", [])"
        ".append(1)\\n  f = f.f_back')\nassert False",
        "import sys, threading\nsys.setprofile(lambda *a: None)",
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
    there = str(tmp_path / "there")
    for code in (
        f"import os\nos.chmod({there!r}, 0)",
        f"import os\nos.utime({there!r}, (1, 1))",
        f"import os\nos.chown({there!r}, 1, 1)",
        f"import os\nos.setxattr({there!r}, 'user.x', b'1')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(tmp_path / 'there')!r}, 'a').write('x')",
        f"import os\nos.remove({str(tmp_path / 'there')!r})",
        f"import os\nos.rename({str(tmp_path / 'there')!r}, 'here')",
        f"import os\nos.mkdir({str(tmp_path / 'folder')!r})",
    ):
        assert not runs(code, QUICK), code
    assert [p.read_text() for p in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "there").stat().st_mode & 0o777
    assert (tmp_path / "there").stat().st_mtime > 1


@linux
@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_older_kernel_is_asked_for_no_more_than_it_knows(version: int, tmp_path: Path) -> None:
    class Kernel:
        asked: ClassVar[list[int]] = []

        def syscall(self, number: int, *rest: object) -> int:
            if rest[-1] == 1:
                return version
            if number == guard.CREATE_RULESET:
                self.asked.append(rest[0]._obj.value)  # type: ignore[attr-defined]
                return os.open(tmp_path, os.O_RDONLY)
            return 0

        def prctl(self, *_: int) -> int:
            return 0

    guard.lock_files(Kernel(), str(tmp_path))
    assert Kernel.asked.pop() == {1: 0x1FF3, 2: 0x3FF3, 3: 0x7FF3}[version]


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
    # What `subprocess` hands to the C function, with that function found out by a first call.
    code = (
        "import os, subprocess\n"
        "real, subprocess._fork_exec, told = subprocess._fork_exec, None, []\n"
        "subprocess._fork_exec = lambda *given: told.append(given) or 1 / 0\n"
        "subprocess.sys = type('', (), {**vars(subprocess.sys), 'audit': lambda *_: None})\n"
        f"line = ['/bin/sh', '-c', 'sleep 30; true {marker}']\n"
        "try: subprocess.Popen(line, start_new_session=True)\n"
        "except ZeroDivisionError: pass\n"
        "given = list(told[0])\n"
        "given[12:14] = os.pipe()\n"
        "given[3] = (given[13],)\n"
        "real(*given)\n"
    )
    assert not children(marker)
    subprocess.run([sys.executable, "-c", code], check=True)
    deadline = time.monotonic() + 10
    while not (free := children(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert free  # outside it works, and the child is left behind
    for process in free:
        os.kill(process, 9)
    time.sleep(0.3)
    assert not children(marker)
    runs(code, QUICK)
    time.sleep(0.3)
    assert not children(marker)


def children(marker: str) -> list[int]:
    """The processes with that word in their command line."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            told = line.read_bytes()
            if b"sleep 30" in told and marker.encode() in told and b"subprocess" not in told:
                found.append(int(line.parent.name))
    return found


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
