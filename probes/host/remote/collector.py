"""The program that answers a host's questions on another node; connection.py sends it there.

It runs from memory, with Python 3.6 or newer and the standard library, and writes no file. It ends when its
standard input closes or its time is up, and what it has started ends with it. Requests and answers are lines,
each compressed JSON in base64:

    {"ask": [["file", "/proc/cmdline", 65536], ["run", 2.0, "ibstat", "-l"]]}
    {"answers": [{"value": "root=…"}, 2, {"errno": 110, "detail": "no answer"}], "monotonic": …, "wall": …}

Bytes are text whose characters are the bytes. Python 3.6 gets this file without annotations
(`plain_source` in transport.py).
"""

from __future__ import annotations

import array
import base64
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import queue
import re
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

GREETING = "gdrtop collector 1"
KERNEL_LOG = "/dev/kmsg"
FILE_SECONDS = 3.0
COMMAND_SECONDS = 3.0  # for which the other answers of a round wait for a command
UNFINISHED = errno.EINPROGRESS  # the answer comes when the question is asked again
THREADS = 4  # that answer questions
MOST_THREADS = 32  # with those whose question never returns
MOST_NAMES = 65536
MOST_REQUEST_BYTES = 16 << 20  # of a line
MOST_OUTPUT_BYTES = 1 << 20
MOST_DATAGRAMS = 1024
MOST_RECORDS = 256
RECORD_BYTES = 8192  # CONSOLE_EXT_LOG_MAX, the longest record of the kernel log
PAGE_BYTES = 4096
_SLURM = ("/opt/slurm/bin", "/cm/local/apps/slurm/current/bin")
TRUSTED_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin", *_SLURM)
LOGS = ("dmesg", "journalctl")  # of a longer output, the end is worth the most
NETLINK_RDMA = 20
SIOCETHTOOL = 0x8946
PR_SET_PDEATHSIG = 1

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_IS_ROOT = os.geteuid() == 0
_RUNNING: set[int] = set()  # process groups
_LIBC = ctypes.CDLL(None)


VERBS_FILE = re.compile("/dev/infiniband/uverbs[0-9]{1,4}$", re.ASCII)
# Below /proc and /sys, users choose only what these names lead to.
_CHOSEN = re.compile("/(root|cwd|fd|exe|map_files|[.][.])(/|$)")


def read_file(path: str, limit: int) -> str:
    """Return the content of a file of at most `limit` bytes."""
    if not path.startswith(("/proc/", "/sys/")) or _CHOSEN.search(path):
        content: str = read_range(path, 0, limit + 1)[0]
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"more than {limit} bytes")
        return content
    descriptor = os.open(path, _READ)
    try:
        parts: list[bytes] = []
        total = 0
        while total <= limit:
            part = os.read(descriptor, min(limit + 1 - total, 1 << 20))
            if not part:
                break
            parts.append(part)
            total += len(part)
            # A whole attribute of sysfs comes with the first read.
            if total < PAGE_BYTES and path.startswith(("/sys/class/", "/sys/bus/", "/sys/devices/")):
                break
        if total > limit:
            raise OSError(errno.EFBIG, f"more than {limit} bytes")
        return b"".join(parts).decode("latin-1")
    finally:
        os.close(descriptor)


def read_range(path: str, offset: int, limit: int) -> list[Any]:
    """Return bytes of a regular file from an offset on, or from its end, its size, identity and owner.

    Users choose such paths, and opening some devices has effects: a reference (O_PATH) opens none.
    """
    reference = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(reference)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EISDIR, "not a regular file")
        offset = max(0, found.st_size + offset) if offset < 0 else offset
        count = min(limit, found.st_size - offset)
        content = b""
        if count > 0:
            descriptor = os.open("/proc/self/fd/" + str(reference), _READ)
            try:
                content = os.pread(descriptor, count, offset)
            finally:
                os.close(descriptor)
    finally:
        os.close(reference)
    identity = f"{found.st_dev}:{found.st_ino}"
    return [content.decode("latin-1"), found.st_size, identity, found.st_uid]


def names(path: str) -> list[str]:
    """Return the sorted names in a directory."""
    with os.scandir(path) as entries:
        found: list[str] = []
        for entry in entries:
            found.append(entry.name)
            if len(found) > MOST_NAMES:
                raise OSError(errno.EFBIG, f"more than {MOST_NAMES} entries")
        return sorted(found)


def link(path: str) -> str:
    """Return the target of a link."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OSError(errno.EISDIR, "not a link") from None
        raise


def resolve(path: str) -> str:
    """Return the path without links; it must exist."""
    os.stat(path)
    return os.path.realpath(path)


def accessible(path: str, mode: int) -> bool:
    """Return whether this process can open the file in this way."""
    if mode & os.W_OK and VERBS_FILE.match(path):
        return can_open(path)
    os.stat(path)
    return os.access(path, mode)


def can_open(path: str, devices: str = "/sys/class/infiniband_verbs") -> bool:
    """Return whether the file's mode lets this process open it; OSError(EPERM): the kernel refuses it."""
    reference = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with open(f"{devices}/{os.path.basename(path)}/dev", encoding="ascii") as file:
            major, minor = map(int, file.read(64).split(":"))
        if os.fstat(reference).st_rdev != os.makedev(major, minor):
            raise OSError(errno.ENXIO, "not the device of that name")
        os.close(os.open(f"/proc/self/fd/{reference}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EACCES:
            return False
        raise
    finally:
        os.close(reference)
    return True


def environment(name: str) -> str:
    """Return a variable of the session."""
    if name not in os.environ:
        raise OSError(errno.ENOENT, "not set")
    return os.environ[name]


def find_command(name: str) -> str:
    """Return the path of a command on the trusted path; for root only one that root alone can change."""
    if "/" in name:
        raise OSError(errno.ENOENT, "a command must be given by name, not by path")
    for directory in TRUSTED_PATH:
        path = directory + "/" + name
        try:
            found = os.stat(path)
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
            continue
        if _IS_ROOT and (found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            continue
        return path
    raise OSError(errno.ENOENT, "not installed")


def run(seconds: float, name: str, *arguments: str) -> list[Any]:
    """Return exit status, output, errors and the bytes left out of a read-only command."""
    return _output([find_command(name), *arguments], seconds, b"", name in LOGS)


def program(seconds: float, source: str, *arguments: str) -> list[Any]:
    """Return the same of a program of gdrtop's own, which may crash or hang."""
    return _output([sys.executable, "-I", "-S", "-", *arguments], seconds, source.encode("utf-8"), False)


def _end_with_parent() -> None:
    os.setsid()
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _output(argv: list[str], seconds: float, given: bytes, keep_end: bool) -> list[Any]:
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if given else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": ":".join(TRUSTED_PATH), "LC_ALL": "C.UTF-8"},
        cwd="/",
        preexec_fn=_end_with_parent,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    _RUNNING.add(process.pid)
    try:
        if process.stdin is not None:
            with process.stdin as pipe:
                pipe.write(given)
        output, errors, left_out = _collect(process, seconds, keep_end)
        status = process.wait(1.0)
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, "closed its output but did not exit") from None
    finally:
        _kill(process.pid)
        process.stdout.close()
        process.stderr.close()
        process.wait()
        _RUNNING.discard(process.pid)
    return [status, output.decode("latin-1"), errors.decode("latin-1"), left_out]


def _collect(process: subprocess.Popen[bytes], seconds: float, keep_end: bool) -> tuple[bytes, bytes, int]:
    """Return both outputs of a process, and how many bytes of a log were left out."""
    deadline = time.monotonic() + seconds
    output, errors = bytearray(), bytearray()
    left_out = 0
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise OSError(errno.ETIMEDOUT, f"still running after {seconds:g} s")
            for key, _ in selector.select(left):
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fileobj)
                    continue
                key.data.extend(part)
                if len(key.data) > MOST_OUTPUT_BYTES:
                    if key.data is errors or not keep_end:
                        raise OSError(errno.EFBIG, "too much output")
                    left_out += len(output) - MOST_OUTPUT_BYTES
                    del output[: len(output) - MOST_OUTPUT_BYTES]
    if left_out:  # the first line is cut
        cut, _, rest = bytes(output).partition(b"\n")
        return rest, bytes(errors), left_out + len(cut) + 1
    return bytes(output), bytes(errors), 0


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def netlink(seconds: float, request: str, protocol: int = NETLINK_RDMA) -> list[Any]:
    """Return the datagrams of the kernel's answer to a netlink request, and whether each was cut."""
    if protocol == NETLINK_RDMA and not os.path.exists("/sys/class/infiniband"):  # it would load ib_core
        raise OSError(errno.ENOENT, "ib_core is not loaded")
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as kernel:
        kernel.sendto(request.encode("latin-1"), (0, 0))
        datagrams: list[Any] = []
        while len(datagrams) < MOST_DATAGRAMS:
            left = deadline - time.monotonic()
            if left <= 0:
                raise OSError(errno.ETIMEDOUT, f"no answer after {seconds:g} s")
            kernel.settimeout(left)
            datagram, _, flags, sender = kernel.recvmsg(1 << 16)
            if sender[0] != 0:  # not from the kernel
                continue
            datagrams.append([datagram.decode("latin-1"), bool(flags & socket.MSG_TRUNC)])
            if _ends(datagram):
                return datagrams
    raise OSError(errno.EFBIG, "endless answer")


def _ends(datagram: bytes) -> bool:
    """Return whether a datagram has the last message of an answer (struct nlmsghdr)."""
    at = 0
    while len(datagram) - at >= 16:
        length = int.from_bytes(datagram[at : at + 4], sys.byteorder)
        kind = int.from_bytes(datagram[at + 4 : at + 6], sys.byteorder)
        flags = int.from_bytes(datagram[at + 6 : at + 8], sys.byteorder)
        if kind in (2, 3) or not flags & 0x2 or not 16 <= length <= len(datagram) - at:
            return True  # an error, the end of a dump, a single message, or garbage
        at += (length + 3) & ~3
    return False


def ethtool(name: str, command: str, more: int) -> str:
    """Return the structure of an ethtool command as the kernel leaves it, with `more` bytes behind it.

    Compressed, in base64, and without the zeros at its end: of half a megabyte for the names of counters, the
    kernel fills a part, and JSON writes six characters for each zero between them.
    """
    interface = os.fsencode(name)
    if not 0 < len(interface) < 16 or "/" in name or not os.path.exists("/sys/class/net/" + name):
        raise OSError(errno.ENODEV, "no such interface")  # the kernel would look for a module of that name
    content = array.array("B", command.encode("latin-1") + bytes(more))
    address = content.buffer_info()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ioctls:
        order = interface.ljust(16, b"\0") + address.to_bytes(8, sys.byteorder) + bytes(16)
        fcntl.ioctl(ioctls.fileno(), SIOCETHTOOL, order)
    return base64.b64encode(zlib.compress(content.tobytes().rstrip(b"\0"))).decode("ascii")


_kernel_log: list[int] = []  # the open log
_records: list[tuple[int, str]] = []  # its newest records


def kernel_log(after: int) -> list[Any]:
    """Return the newest sequence number since the log was opened, or -1, and the records after `after`."""
    if not _kernel_log:
        opened = os.open(KERNEL_LOG, _READ)
        os.lseek(opened, 0, os.SEEK_END)
        _kernel_log.append(opened)
    while True:
        try:
            record = os.read(_kernel_log[0], RECORD_BYTES)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten before it was read
                continue
            raise
        number = record[:80].split(b",", 2)[1:2]
        if number and number[0].isdigit():
            _records.append((int(number[0]), record.decode("latin-1")))
            del _records[:-MOST_RECORDS]
    newest = _records[-1][0] if _records else -1
    return [newest, [record for number, record in _records if number > after]]


QUESTIONS: dict[str, Callable[..., Any]] = {
    "file": read_file,
    "file_range": read_range,
    "names": names,
    "link": link,
    "resolve": resolve,
    "size": lambda path: os.stat(path).st_size,
    "readable": lambda path: accessible(path, os.R_OK),
    "writable": lambda path: accessible(path, os.R_OK | os.W_OK),
    "environment": environment,
    "run": run,
    "program": program,
    "netlink": netlink,
    "ethtool": ethtool,
    "kernel_log": kernel_log,
}
TIMED = ("run", "program", "netlink")  # their first argument is their time limit


def answer(question: list[Any]) -> dict[str, Any]:
    """Return the answer to a question, or why there is none."""
    try:
        return {"value": QUESTIONS[question[0]](*question[1:])}
    except OSError as error:
        return {"errno": error.errno or errno.EIO, "detail": error.strerror or str(error)}
    except ValueError:  # a NUL, or another character that no file name can have
        return {"errno": errno.ENAMETOOLONG, "detail": "invalid file name"}
    except Exception as error:
        return {"errno": errno.EINVAL, "detail": f"{type(error).__name__}: {error}"}


def _short(found: dict[str, Any]) -> Any:
    """Return only the number of an error of which there is no more to say: most files are not there."""
    number = found.get("errno")
    return number if number and found["detail"] == os.strerror(number) else found


_HANGING: set[str] = set()  # questions whose thread has not come back: they are not asked again until then
_UNFINISHED: dict[str, list[Any]] = {}  # by question: when its command began, and the answer or None
_CHANGED = threading.Condition()  # of all rounds: a command may end in a later one


class Round:
    """The questions of one request, answered by several threads.

    A read that hangs in the kernel cannot be ended: its question gets "timed out", and another thread goes
    on with the next ones. A command that takes long gets UNFINISHED and goes on: its question does not start
    it again, and only a round without other questions waits for it.
    """

    def __init__(self, questions: list[list[Any]]) -> None:
        self.questions = questions
        self.answers: list[Any] = [None] * len(questions)
        self.older = [number for number in range(len(questions)) if self._key(number) in _UNFINISHED]
        self.waiting = [number for number in range(len(questions)) if number not in self.older]
        if _HANGING:
            for number in [number for number in self.waiting if repr(questions[number]) in _HANGING]:
                self.waiting.remove(number)
                self.answers[number] = {"errno": errno.ETIMEDOUT, "detail": "still no answer"}
        self.waiting.reverse()
        self.began: dict[int, float] = {}

    def work(self) -> None:
        """Answer questions until none is left; in a thread."""
        while True:
            with _CHANGED:
                if not self.waiting:
                    return
                number = self.waiting.pop()
                self.began[number] = time.monotonic()
            found = answer(self.questions[number])
            with _CHANGED:
                if self.began.pop(number, None) is None:  # too late for this round
                    if self._key(number) in _UNFINISHED:
                        _UNFINISHED[self._key(number)][1] = found
                        _CHANGED.notify_all()
                    _HANGING.discard(repr(self.questions[number]))
                    return
                self.answers[number] = found
                if not self.began and not self.waiting:
                    _CHANGED.notify_all()

    def finish(self, threads: Threads) -> list[Any]:
        """Return all answers."""
        with _CHANGED:
            is_alone = len(self.older) == len(self.questions)
            while self.began or self.waiting:
                _CHANGED.wait(0.2)
                now = time.monotonic()
                late = [number for number, at in self.began.items() if now - at > self._limit(number)]
                for number in late:
                    began = self.began.pop(number)
                    if self._key(number):
                        _UNFINISHED[self._key(number)] = [began, None]
                        self.older.append(number)
                    else:
                        self.answers[number] = {"errno": errno.ETIMEDOUT, "detail": "no answer"}
                        _HANGING.add(repr(self.questions[number]))
                    # If no thread is left, those of this round go on with the rest.
                    if not threads.start(self.work) and not self.began:
                        self.give_up()
            if is_alone:
                _CHANGED.wait_for(lambda: all(map(self._is_over, self.older)), COMMAND_SECONDS)
            for number in self.older:
                self.answers[number] = self._older_answer(number)
            for key in {self._key(number) for number in self.older}:
                if _UNFINISHED[key][1] is not None:
                    del _UNFINISHED[key]
            return self.answers

    def _older_answer(self, number: int) -> dict[str, Any]:
        """Return the answer of a command that an earlier question has begun, as far as there is one."""
        began, found = _UNFINISHED[self._key(number)]
        seconds = time.monotonic() - began
        if found is None and seconds > FILE_SECONDS + self.questions[number][1]:  # it cannot even be killed
            return {"errno": errno.ETIMEDOUT, "detail": "no answer"}
        return found or {"errno": UNFINISHED, "detail": f"still running after {seconds:.0f} s"}

    def _is_over(self, number: int) -> bool:
        return self._older_answer(number).get("errno") != UNFINISHED

    def give_up(self) -> list[Any]:
        """Answer that no thread is left; called by `finish`, or before any thread has started."""
        for number in self.waiting:
            self.answers[number] = {"errno": errno.ETIMEDOUT, "detail": "too many reads hang"}
        self.waiting = []
        return self.answers

    def _limit(self, number: int) -> float:
        return COMMAND_SECONDS if self._key(number) else FILE_SECONDS

    def _key(self, number: int) -> str:
        """Return what names a command; "" for other questions."""
        question = self.questions[number]
        return repr(question) if question and question[0] in TIMED else ""


class Threads:
    """Daemon threads; the commands that they start end with them (prctl(2)), so they stay until the end."""

    def __init__(self) -> None:
        self.work: queue.Queue[Callable[[], None]] = queue.Queue()
        self.lock = threading.Lock()
        self.idle = self.started = 0

    def start(self, work: Callable[[], None]) -> bool:
        """Let a thread do this; return whether one is left that does not hang."""
        with self.lock:
            if self.idle:
                self.idle -= 1
            elif self.started < MOST_THREADS:
                self.started += 1
                threading.Thread(target=self._run, daemon=True).start()
            else:
                return False
        self.work.put(work)
        return True

    def _run(self) -> None:
        while True:
            self.work.get()()
            with self.lock:
                self.idle += 1


def end(status: int) -> None:
    """End at once, with all that was started."""
    for group in list(_RUNNING):
        _kill(group)
    os._exit(status)


def read_requests(requests: queue.Queue[dict[str, Any]]) -> None:
    """Put each request into the queue; end at the end of the input."""
    while True:
        line = sys.stdin.buffer.readline(MOST_REQUEST_BYTES)
        if not line.endswith(b"\n"):
            end(0 if not line else 1)
        try:
            requests.put(json.loads(zlib.decompress(base64.b64decode(line)).decode("utf-8")))
        except Exception:
            end(1)


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    content = base64.b64encode(zlib.compress(json.dumps(message).encode("utf-8")))
    try:
        sys.stdout.buffer.write(content + b"\n")
        sys.stdout.buffer.flush()
    except OSError:  # gdrtop has gone
        end(1)


def node_kind() -> str:
    """Return what nodes of the same type have in common: board, GPUs and NICs."""

    def content(path: str) -> str:
        try:
            return read_file(path, PAGE_BYTES).strip()
        except OSError:
            return ""

    root = "/sys/bus/pci/devices/"
    counts: dict[str, int] = {}
    for device in os.listdir(root) if os.path.isdir(root) else []:
        if content(root + device + "/class")[:4] in ("0x02", "0x03", "0x12"):  # network, display, accelerator
            kind = content(root + device + "/vendor") + ":" + content(root + device + "/device")
            counts[kind] = counts.get(kind, 0) + 1
    devices = [f"{kind} x{count}" for kind, count in sorted(counts.items())]
    return " ".join([content("/sys/class/dmi/id/product_name"), *devices])[:300]


def main(seconds: float) -> None:
    """Answer requests for at most `seconds`."""
    alarm = threading.Timer(seconds, end, [3])
    alarm.daemon = True
    alarm.start()
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    reader = threading.Thread(target=read_requests, args=[requests], daemon=True)
    reader.start()
    threads = Threads()
    sys.stdout.buffer.write(f"\n{GREETING}\n".encode("ascii"))  # after what a shell may have printed
    send({"kind": node_kind(), "is_root": _IS_ROOT})
    while True:
        questions = requests.get()["ask"]
        current = Round(questions)
        started = [threads.start(current.work) for _ in range(min(THREADS, len(questions)))]
        answers = current.finish(threads) if any(started) or not questions else current.give_up()
        send(
            {
                "answers": [_short(found) for found in answers],
                "monotonic": time.monotonic(),
                "wall": time.time(),
            }
        )
