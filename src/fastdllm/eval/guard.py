"""Run by `sandbox` as a process of its own: shuts the doors, then runs generated code.

It imports nothing of the package. What it cannot shut on this system (another kernel, another
operating system) it leaves to the next door: `sandbox` says which there are.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

NEW_USER, NEW_NET, NEW_PID, NEW_IPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
NO_NEW_PRIVILEGES, DEATH_SIGNAL = 38, 1  # prctl
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock, the same on all processors
WRITES = 0x7FF2  # write, remove, make, refer, truncate: all of ABI 3 but execute and reading
BENEATH = 1
FORBIDDEN = (
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill",
    "os.killpg", "subprocess.Popen", "pty.spawn", "socket.", "ctypes.",
    "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents",
)  # fmt: skip


def main() -> None:
    """Limits from the command line, the program from stdin, the verdict to a pipe."""
    limits, verdict = json.loads(sys.argv[1]), int(sys.argv[2])
    job = json.load(sys.stdin)
    libc = ctypes.CDLL(None, use_errno=True)
    separate(libc)
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


def separate(libc: Any) -> None:
    """Own users, no network, no other processes in sight; fewer where the kernel refuses."""
    with suppress(AttributeError):  # not Linux
        uid, gid = os.getuid(), os.getgid()
        if libc.unshare(NEW_USER | NEW_NET | NEW_PID | NEW_IPC) == 0:
            with suppress(OSError):
                for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                                   ("gid_map", f"{gid} {gid} 1")):  # fmt: skip
                    with open(f"/proc/self/{name}", "w") as file:
                        file.write(text)


def limit(limits: dict[str, int]) -> None:
    """CPU seconds, memory, file size, open files, processes; no core dumps."""
    for name, value in {**limits, "RLIMIT_CORE": 0}.items():
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def lock_files(libc: Any, folder: str) -> None:
    """Landlock: nothing is written, made or removed outside the folder."""
    with suppress(AttributeError):
        size = ctypes.sizeof(ctypes.c_uint64)
        handled = ctypes.c_uint64(WRITES)
        rules = libc.syscall(CREATE_RULESET, ctypes.byref(handled), size, 0)
        if rules < 0:
            return
        inside = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        rule = ctypes.create_string_buffer(
            WRITES.to_bytes(8, "little") + inside.to_bytes(4, "little"), 12
        )
        libc.syscall(ADD_RULE, rules, BENEATH, rule, 0)
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        libc.syscall(RESTRICT_SELF, rules, 0)
        os.close(rules)
        os.close(inside)


def run(job: dict[str, Any], verdict: int) -> None:
    """The code in a thread, whose stack holds nothing of ours; the secret if all went well."""
    passed: list[bool] = []
    program = job["program"]

    def work() -> None:
        # Names of its own, as a script has.
        exec(compile(program, "<answer>", "exec"), {"__name__": "__main__"})
        passed.append(True)

    secret, threading.excepthook = job["secret"].encode(), lambda _: None
    thread = threading.Thread(target=work, daemon=True)
    closed = [True]

    def refuse(event: str, _: Any) -> None:
        if closed and event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")

    job.clear()
    sys.addaudithook(refuse)
    thread.start()
    thread.join()
    closed.clear()
    if passed:
        os.write(verdict, secret)
    os._exit(0)


if __name__ == "__main__":
    main()
