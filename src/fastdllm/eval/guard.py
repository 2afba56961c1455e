"""Run by `sandbox` as a process of its own: shuts the doors, then runs generated code.

It imports nothing of the package. What it cannot shut on this system (another kernel, another
operating system) it leaves to the next door: `sandbox` says which there are.
"""

import _thread
import ctypes
import json
import os
import resource
import signal
import sys
import weakref
from collections import deque
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

NEW_USER, NEW_NET, NEW_PID, NEW_IPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
NO_NEW_PRIVILEGES, DEATH_SIGNAL = 38, 1  # prctl
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock, the same on all processors
EXECUTE, WRITES = 1, 0x7FF2  # write, remove, make, refer, truncate: all of ABI 3 but reading
KNOWN = {1: 0x1FFF, 2: 0x3FFF}  # what older kernels know of these
BENEATH = 1
FORBIDDEN = (
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill",
    "os.killpg", "subprocess.Popen", "pty.spawn", "socket.", "ctypes.",
    "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents",
    "sys.setprofile", "sys.settrace", "cpython.PyInterpreterState_New",  # hooks are not inherited
    "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr",  # not Landlock's business
)  # fmt: skip


def main() -> None:
    """Limits from the command line, the program from stdin, the verdict to a pipe."""
    limits, verdict = json.loads(sys.argv[1]), int(sys.argv[2])
    job = json.load(sys.stdin)
    libc = ctypes.CDLL(None, use_errno=True)
    if not separate(libc):  # the limit then counts what else this user runs
        limits["RLIMIT_NPROC"] += threads_of(os.getuid())
    child = os.fork()  # the first process of the new namespace: when it ends, all end
    if child:
        os.close(verdict)
        os.waitpid(child, 0)
        os._exit(0)
    with suppress(AttributeError):
        libc.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    limit(limits)
    lock_files(libc, os.getcwd())
    run(job, verdict)


def separate(libc: Any) -> bool:
    """Own users, no network, no other processes in sight; whether the kernel lets us."""
    with suppress(AttributeError):  # not Linux
        uid, gid = os.getuid(), os.getgid()
        if libc.unshare(NEW_USER | NEW_NET | NEW_PID | NEW_IPC) == 0:
            with suppress(OSError):
                for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                                   ("gid_map", f"{gid} {gid} 1")):  # fmt: skip
                    with open(f"/proc/self/{name}", "w") as file:
                        file.write(text)
            return True
    return False


def threads_of(uid: int) -> int:
    """How many threads a user runs, as far as this system tells."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has just ended
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            found += int(lines["Threads"]) if int(lines["Uid"].split()[0]) == uid else 0
    return found


def limit(limits: dict[str, int]) -> None:
    """CPU seconds, memory, file size, open files, processes; no core dumps."""
    for name, value in {**limits, "RLIMIT_CORE": 0}.items():
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def lock_files(libc: Any, folder: str) -> None:
    """Landlock: nothing is written, made or removed outside the folder, nothing executed at all."""
    with suppress(AttributeError):
        size = ctypes.sizeof(ctypes.c_uint64)
        known = KNOWN.get(libc.syscall(CREATE_RULESET, None, 0, 1), -1)  # by the kernel's version
        handled = ctypes.c_uint64((WRITES | EXECUTE) & known)
        rules = libc.syscall(CREATE_RULESET, ctypes.byref(handled), size, 0)
        if rules < 0:
            return
        inside = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        rule = ctypes.create_string_buffer(
            (WRITES & known).to_bytes(8, "little") + inside.to_bytes(4, "little"), 12
        )
        libc.syscall(ADD_RULE, rules, BENEATH, rule, 0)
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        libc.syscall(RESTRICT_SELF, rules, 0)
        os.close(rules)
        os.close(inside)


def run(job: dict[str, Any], verdict: int) -> None:
    """The code in a thread that begins in C, so that no frame of ours is under it to climb down to.

    The secret is said if the code came to its end.
    """
    passed: list[bool] = []
    secret, program, done = job["secret"].encode(), job["program"], _thread.allocate_lock()
    closed, last = [True], set[Any]()

    def refuse(event: str, _: Any) -> None:
        if closed and event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")

    job.clear()
    code = compile(program, "<answer>", "exec")
    # Names of its own, as a script has. `last` is let go when all is over, however it went.
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    todo = chain(map(exec, [code], [names]), map(passed.append, [True]), last)
    done.acquire()
    weakref.finalize(last, done.release)
    del last
    sys.addaudithook(refuse)
    _thread.start_new_thread(deque, (todo, 0))
    del todo
    done.acquire()
    closed.clear()
    if passed:
        os.write(verdict, secret)
    os._exit(0)


if __name__ == "__main__":
    main()
