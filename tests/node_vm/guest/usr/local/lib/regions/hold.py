"""Registers memory in every way that matters and holds it: hold.py CASE..., each in a process of its own.

Prints the pids of all cases as JSON once everything is registered, {"host": [714], "forked": [715, 716]}, and
stays; start it by setsid and kill its process group to end all. Needs root, the modules regions and nvidia.
"""

import json
import os
import pwd
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from uverbs import (
    HOST_ACCESS,
    HUGETLB,
    ON_DEMAND,
    Verbs,
    checked,
    dmabuf,
    libc,
    memory,
    pin_for_io_uring,
    unmap,
)

MIB = 1 << 20
KIB = 1 << 10
VISITOR = "visitor"
NEW_PIDS, NEW_MOUNTS, REMOUNT_PRIVATE = 0x20000000, 0x00020000, 1 << 14 | 1 << 18
SET_NAME = 15
EXIT_OF_THIS_THREAD = 60


def pause() -> None:
    while True:
        signal.pause()


def use_gpu() -> None:
    """Opens the device nodes that CUDA opens."""
    for name in ("nvidiactl", "nvidia0"):
        os.open(f"/dev/{name}", os.O_RDWR)


def child(work: Callable[[], None]) -> int:
    """Runs `work` in a child that stays; gives its pid when the work is done."""
    done, finished = os.pipe()
    pid = os.fork()
    if pid == 0:
        work()
        os.write(finished, b".")
        pause()
    os.close(finished)
    if os.read(done, 1) != b".":
        sys.exit(f"{work.__name__} failed")
    os.close(done)
    return pid


def in_thread(work: Callable[[], None]) -> None:
    """Runs `work` in a thread named as NCCL's that registers, which stays."""
    done = threading.Event()

    def run() -> None:
        libc.prctl(SET_NAME, b"NCCL Service 0")
        work()
        done.set()
        threading.Event().wait()

    threading.Thread(target=run, daemon=True).start()
    done.wait()


def parameter(name: str, value: int) -> None:
    Path("/sys/module/regions/parameters", name).write_text(str(value))


def register_both(verbs: Verbs, host: int, buffer: int) -> None:
    verbs.register(memory(host), host)
    verbs.register_dmabuf(dmabuf(buffer), buffer)


# The cases; each gives the pids of further processes. All but one use a GPU.


def without_gpu() -> None:
    Verbs().register_dmabuf(dmabuf(8 * MIB), 8 * MIB)


def nothing() -> None:
    verbs = Verbs()
    verbs.deregister(verbs.register(memory(MIB), MIB))


def host() -> None:
    buffer = memory(8 * MIB)
    Verbs().register(buffer, 8 * MIB)
    unmap(buffer, 8 * MIB)


def dmabuf_closed() -> None:
    fd = dmabuf(16 * MIB)
    Verbs().register_dmabuf(fd, 16 * MIB)
    os.close(fd)


def dmabuf_part() -> None:
    Verbs().register_dmabuf(dmabuf(MIB), 5001, offset=4196)


def dmabuf_movable() -> None:
    parameter("pinned", 0)
    Verbs().register_dmabuf(dmabuf(8 * MIB), 8 * MIB)
    parameter("pinned", 1)


def without_length() -> None:
    parameter("keep_length", 0)
    register_both(Verbs(), 8 * MIB, 8 * MIB)
    parameter("keep_length", 1)


def both() -> None:
    register_both(Verbs(), 8 * MIB, 16 * MIB)


def same_buffer_twice() -> None:
    buffer, verbs = memory(8 * MIB), Verbs()
    verbs.register(buffer, 8 * MIB)
    verbs.register(buffer, 8 * MIB)
    Verbs(1).register(buffer, 8 * MIB)


def same_dmabuf_twice() -> None:
    buffer, verbs = dmabuf(4 * MIB), Verbs()
    verbs.register_dmabuf(buffer, 4 * MIB)
    verbs.register_dmabuf(buffer, 4 * MIB)


def odd_addresses() -> None:
    buffer, verbs = memory(8 * MIB), Verbs()
    verbs.register(buffer + 123, 4 * MIB - 99)
    for page in range(100):
        verbs.register(buffer + page * 8 * KIB + 4095, 2)


def huge_pages() -> None:
    Path("/proc/sys/vm/nr_hugepages").write_text("8")
    buffer, verbs = memory(8 * MIB, HUGETLB), Verbs()
    verbs.register(buffer, 8 * MIB)
    verbs.register(buffer + 5, 3 * MIB + 17)


def forked() -> list[int]:
    verbs = Verbs()
    register_both(verbs, 8 * MIB, 8 * MIB)

    def idle() -> None:
        pass

    def register_by_inherited_context() -> None:
        verbs.register(memory(4 * MIB), 4 * MIB)

    return [child(idle), child(register_by_inherited_context)]


def changed_user() -> None:
    verbs = Verbs()
    verbs.register(memory(8 * MIB), 8 * MIB)
    os.setuid(pwd.getpwnam(VISITOR).pw_uid)
    register_both(verbs, 4 * MIB, 8 * MIB)


def on_demand_paging() -> None:
    Verbs().register(memory(8 * MIB), 8 * MIB, HOST_ACCESS | ON_DEMAND)


def pid_namespace() -> list[int]:
    checked(libc.unshare(NEW_PIDS | NEW_MOUNTS), "unshare")
    checked(libc.mount(b"none", b"/", None, REMOUNT_PRIVATE, None), "mount private")

    def inside() -> None:
        checked(libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount proc")
        register_both(Verbs(), 8 * MIB, 8 * MIB)

    return [child(inside)]


def second_thread() -> None:
    in_thread(lambda: register_both(Verbs(), 8 * MIB, 8 * MIB))


def first_thread_ended() -> list[int]:
    done, finished = os.pipe()

    def register_and_leave() -> None:
        register_both(Verbs(), 4 * MIB, 8 * MIB)
        in_thread(lambda: None)
        os.write(finished, b".")
        libc.syscall(EXIT_OF_THIS_THREAD, 0)

    pid = os.fork()
    if pid == 0:
        register_and_leave()
    os.read(done, 1)
    return [pid]


def queue_rings() -> None:
    verbs = Verbs()
    verbs.register(memory(4 * MIB), 4 * MIB)
    verbs.create_completion_queue(memory(256 * KIB), 256 * KIB)
    verbs.register_dmabuf(dmabuf(128 * KIB), 128 * KIB)


def pinned_by_io_uring() -> None:
    verbs = Verbs()
    verbs.register(memory(8 * MIB), 8 * MIB)
    pin_for_io_uring(memory(2 * MIB), 2 * MIB)


def execed() -> list[int]:
    done, finished = os.pipe()
    pid = os.fork()
    if pid == 0:
        verbs = Verbs(inheritable=True)
        verbs.register(memory(8 * MIB), 8 * MIB)
        os.execvp("sleep", ["sleep", "infinity"])
    os.close(finished)
    os.read(done, 1)  # its end is closed on exec
    return [pid]


# These leave regions whose thread has ended.


def thread_ended() -> None:
    verbs = Verbs()
    thread = threading.Thread(target=register_both, args=(verbs, 8 * MIB, 8 * MIB))
    thread.start()
    thread.join()


def child_ended() -> None:
    verbs = Verbs()
    register_both(verbs, 8 * MIB, 8 * MIB)
    pid = child(lambda: verbs.register(memory(4 * MIB), 4 * MIB) and None)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def zombie() -> list[int]:
    """The process that registered has ended, its parent does not know; its child has the context open."""

    def register_and_end() -> None:
        register_both(Verbs(), 8 * MIB, 8 * MIB)
        if os.fork():
            os.write(told, str(os.getpid()).encode())
            os._exit(0)
        pause()

    pid_of, told = os.pipe()
    if os.fork() == 0:
        register_and_end()
    return [int(os.read(pid_of, 16))]


def orphaned() -> None:
    """The process that registered has ended; its child has the context open."""

    def register_and_end() -> None:
        register_both(Verbs(), 8 * MIB, 8 * MIB)
        if os.fork() == 0:
            pause()
        os._exit(0)

    pid = os.fork()
    if pid == 0:
        register_and_end()
    os.waitpid(pid, 0)


def main() -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)
    cases = [globals()[name] for name in sys.argv[1:]]
    pids = {}
    for case in cases:
        answer, given = os.pipe()

        def run(case: Callable[[], list[int] | None] = case, given: int = given) -> None:
            if case is not without_gpu:
                use_gpu()
            more = case() or []
            os.write(given, json.dumps([os.getpid(), *more]).encode())

        child(run)
        pids[case.__name__] = json.loads(os.read(answer, 4096))
    print(json.dumps(pids), flush=True)
    pause()


main()
