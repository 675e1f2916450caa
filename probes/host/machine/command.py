"""Run a read-only command: argv, trusted path, time and output limits, and what clusters' clients need.

No process stays behind: probes/host/machine/command_server.py kills what a command has started when the
command ends or times out, and when gdrtop itself dies.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import marshal
import os
import select
import selectors
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from probes.base.site import site
from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine import command_server
from probes.host.probe_thread import note
from probes.host.protocol import CommandOutput
from probes.host.trusted_path import NotTrusted, is_root, is_trusted, require_owner, require_path

# What the clients of a cluster need to work: variables of the admin, and the directory that the site names.
#
# The reader and the runner start commands with a clean environment. These clients find their cluster by a
# variable, and may run what its file names: a plugin of Slurm (slurm.conf(5), PluginDir), or a program that
# logs in to Kubernetes (client-go, "exec"). So root uses only files that root alone can change.

_SLURM_CLIENTS = ("sinfo", "squeue", "scontrol")
_KUBERNETES = ("kubectl", "oc")
_MOST_ANCESTORS = 16
_SLURM_USER = "slurm"  # slurmd runs as root what this user writes to slurm.conf


def client_directory(name: str) -> str:
    """Return where the site has a client; "" if it is no client, or in a usual place, or not root's alone."""
    directory = site().places.commands if name in (*_SLURM_CLIENTS, *_KUBERNETES) else ""
    return "" if directory and is_root() and not is_trusted(directory) else directory


def client_environment(name: str) -> Maybe[dict[str, str]]:
    """Return the variables that a command gets besides the usual ones; unknown if root must not use them."""
    if name in _SLURM_CLIENTS:
        return _slurm_configuration()
    return cluster_login() if name in _KUBERNETES else {}


def _slurm_configuration() -> Maybe[dict[str, str]]:
    """Return SLURM_CONF of the admin or slurmd, else that of the site."""
    path = os.environ.get("SLURM_CONF") or slurmds_configuration(os.getppid()) or site().places.slurm_conf
    if not path:
        return {}
    path = os.path.abspath(path)
    if is_root():
        try:  # the name stays, because the other files of Slurm are beside it
            require_path(path, also=_SLURM_USER)
        except NotTrusted as error:
            return Unknown(Reason.NEEDS_PERMISSION, "SLURM_CONF", printable(str(error.strerror), 200))
        except OSError:
            return Unknown(Reason.IO_ERROR, "SLURM_CONF", f"there is no {printable(path, 160)}")
    return {"SLURM_CONF": path}


def slurmds_configuration(process: int) -> str:
    """Return the slurm.conf of the slurmd that has started a process; "" for none, or the usual one.

    A Prolog gets SLURM_CONF, a HealthCheckProgram only SLURMD_NODENAME (SchedMD/slurm 22.05 and 23.11,
    run_script_health_check in src/slurmd/slurmd/slurmd.c).
    """
    for _ in range(_MOST_ANCESTORS if "SLURMD_NODENAME" in os.environ else 0):
        name, parent = _name_and_parent(process)
        if name == b"slurmd":
            words = _words(process, "cmdline")
            if b"-f" in words[:-1]:
                return os.fsdecode(words[words.index(b"-f") + 1])
            variables = (word.partition(b"=") for word in _words(process, "environ"))
            return next((os.fsdecode(value) for key, _, value in variables if key == b"SLURM_CONF"), "")
        process = parent
        if process <= 1:
            break
    return ""


def _name_and_parent(process: int) -> tuple[bytes, int]:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            start, _, fields = file.read(1024).rpartition(b") ")
        return start.partition(b"(")[2], int(fields.split()[1])
    except (OSError, IndexError, ValueError):
        return b"", 0


def _words(process: int, file: str) -> list[bytes]:
    try:
        with open(f"/proc/{process}/{file}", "rb") as opened:
            return opened.read(1 << 17).split(b"\0")
    except OSError:
        return []


def cluster_login() -> Maybe[dict[str, str]]:
    """Return HOME and KUBECONFIG of the admin for kubectl; unknown if root must not use the kubeconfig."""
    home = os.environ.get("HOME", "")
    listed = os.environ.get("KUBECONFIG", "")
    paths = [os.path.abspath(path) for path in listed.split(os.pathsep) if path]
    if not paths and os.path.isabs(home):
        paths = [os.path.join(home, ".kube", "config")]
    if is_root():
        paths = [path for path in paths if os.path.exists(path)]
        try:  # a link could be turned after this, so kubectl gets what it leads to
            paths = [require_path(path) for path in paths]
        except OSError as error:
            detail = f"{printable(str(error.strerror), 160)}: run gdrtop without sudo"
            return Unknown(Reason.NEEDS_PERMISSION, "KUBECONFIG", detail)
        home = home if is_trusted(home) else ""
        # Without KUBECONFIG, kubectl would read the file in HOME, which has not been checked here.
        paths = paths or [os.devnull]
    environment = {"HOME": home, "KUBERC": "off"} if os.path.isabs(home) else {}
    return {**environment, "KUBECONFIG": os.pathsep.join(paths)} if paths else environment


# Where AWS ParallelCluster and NVIDIA Base Command Manager have Slurm.
_SLURM = ("/opt/slurm/bin", "/cm/local/apps/slurm/current/bin")
TRUSTED_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin", *_SLURM)
OUTPUT_LIMIT_BYTES = 1 << 20  # more is malformed, except of LOGS
# Of a log, the newest lines are worth the most: of a longer output, the end is returned.
LOGS = ("dmesg", "journalctl")
# A command that used CPU in the second half of its time gets more time, up to this many times: if all CPUs
# are busy, it is slow, not stuck.
_MOST_TIMES = 6
_START_SECONDS = 30.0  # then the server hangs
# Unlike the file as a program, an imported module is compiled once.
_RUN_SERVER = "import sys; sys.path.append(sys.argv[1]); import command_server; command_server.main()"
_EXIT_SECONDS = 1.0  # from the end of a command's output to its exit


def find_command(name: str) -> str | None:
    """Return the path of a command on the trusted path; for root, only if only root can have changed it."""
    for directory in filter(None, (client_directory(name), *TRUSTED_PATH)):
        path = f"{directory}/{name}"
        try:
            found = os.stat(path)
            if is_root():
                require_owner(found, path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and os.access(path, os.X_OK):
            return path
    return None


def environment_of(name: str) -> Maybe[dict[str, str]]:
    """Return the environment of a command, for the reader and the runner; unknown if it must not run."""
    own = client_environment(name)
    return own if isinstance(own, Unknown) else {"PATH": ":".join(TRUSTED_PATH), "LC_ALL": "C.UTF-8", **own}


def run_command(argv: Sequence[str], seconds: float) -> Maybe[CommandOutput]:
    """Run a command from the trusted path."""
    if "/" in argv[0]:
        return Unknown(Reason.NOT_THERE, argv[0], "a command must be given by name, not by path")
    path = find_command(argv[0])
    if path is None:
        return Unknown(Reason.NOT_THERE, argv[0], "not installed")
    return run_program([path, *argv[1:]], seconds, tuple(argv))


def run_program(
    program: Sequence[str], seconds: float, argv: tuple[str, ...], is_patient: bool = True
) -> Maybe[CommandOutput]:
    """Run a program given by path; the answer calls it `argv`.

    `is_patient`: it gets more time if it is slow, not stuck.
    """
    name = " ".join(argv)
    environment = environment_of(argv[0])
    if isinstance(environment, Unknown):
        return environment
    try:
        process = _start(program, environment)
    except OSError as error:
        return Unknown(Reason.IO_ERROR, name, str(error.strerror))
    with process:
        most_times = _MOST_TIMES if is_patient else 1
        streams = _collect(process, seconds, name, argv[0] in LOGS, most_times)
        if isinstance(streams, Reason):
            timeout = f"still running after {seconds:g} s"
            detail = timeout if streams is Reason.TIMED_OUT else "too much output"
            return Unknown(streams, name, detail)
        ended = process.message(_EXIT_SECONDS)
        if ended is None:
            return Unknown(Reason.TIMED_OUT, name, "closed its output but did not exit")
        if "errno" in ended:
            return Unknown(Reason.IO_ERROR, name, os.strerror(ended["errno"]))
        if "status" not in ended:
            return Unknown(Reason.IO_ERROR, name, "killed together with its supervisor")
        output, errors, left_out = streams
        stdout, stderr = (printable_lines(part.decode("utf-8", "replace")) for part in (output, errors))
        return CommandOutput(argv, ended["status"], stdout, stderr, left_out)


class _Process:
    """A command that was started, and its supervisor's socket."""

    def __init__(self, control: socket.socket, output: int, errors: int) -> None:
        self._control, self.output, self.errors = control, output, errors
        self.pid = 0

    def message(self, seconds: float) -> dict[str, int] | None:
        """Return the supervisor's next message; {} if there are no more, None if it takes too long."""
        if not select.select([self._control], [], [], seconds)[0]:
            return None
        try:
            content = self._control.recv(1024)
        except ConnectionError:
            return {}
        found: dict[str, int] = marshal.loads(content) if content else {}
        return found

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until the command and all that it has started are gone, or are stuck in the kernel."""
        os.close(self.output)
        os.close(self.errors)
        with self._control, contextlib.suppress(OSError):  # the supervisor was killed
            self._control.shutdown(socket.SHUT_WR)
            while self.message(command_server.KILL_SECONDS):
                continue


class _Server:
    """The program that starts commands; it starts with the first command, and again if it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def send(self, order: bytes, descriptors: Sequence[int]) -> None:
        """Let it start a command, or raise OSError."""
        with self._lock:
            if self._orders is not None:
                with contextlib.suppress(ConnectionError):  # it was killed, and starts again below
                    socket.send_fds(self._orders, [order], descriptors)
                    return
            self._close()
            self._orders = self._start()
            socket.send_fds(self._orders, [order], descriptors)

    def close(self) -> None:
        """End it; a later command starts it again."""
        with self._lock:
            self._close()

    def _start(self) -> socket.socket:
        orders, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _RUN_SERVER, os.path.dirname(command_server.__file__)],
                    stdin=remote.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError:
                orders.close()
                raise
        return orders

    def _close(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._process is not None:
            self._process.kill()  # the supervisors end by themselves
            self._process.wait()
            self._process = None


_SERVER = _Server()
atexit.register(_SERVER.close)


def _start(program: Sequence[str], environment: dict[str, str]) -> _Process:
    """Start a program under a supervisor, or raise OSError."""
    pairs = [f"{name}={value}" for name, value in environment.items()]
    order = marshal.dumps({"program": list(program), "environment": pairs})
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as on_error:
        control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.enter_context(remote)
        on_error.enter_context(control)
        ours: list[int] = []
        given: list[int] = []
        for _ in range(2):
            reading, writing = os.pipe()
            on_error.callback(os.close, reading)
            theirs.callback(os.close, writing)
            ours.append(reading)
            given.append(writing)
        _SERVER.send(order, [*given, remote.fileno()])
        theirs.close()
        process = _Process(control, *ours)
        process.pid = (process.message(_START_SECONDS) or {}).get("pid", 0)
        if not process.pid:  # once it was started, it may still fail to execute
            raise OSError(errno.EIO, "its supervisor did not start it")
        on_error.pop_all()
        return process


def _collect(
    process: _Process, seconds: float, name: str, keep_end: bool, most_times: int
) -> tuple[bytes, bytes, int] | Reason:
    """Read both streams to their end; return a reason if they take too long or are too large.

    `keep_end`: of a long output keep only its last lines. The third value is how many bytes were left out.
    """
    output = process.output
    parts: dict[int, deque[bytes]] = {output: deque(), process.errors: deque()}
    outputs = list(parts.values())
    total, halves, ticks, left_out = 0, 0, 0, 0
    until = time.monotonic() + seconds / 2
    with selectors.DefaultSelector() as selector:
        for descriptor in parts:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                used, halves = _cpu_ticks(process.pid), halves + 1
                if halves > 1 and (used <= ticks or halves >= 2 * most_times):
                    return Reason.TIMED_OUT
                ticks, until = used, time.monotonic() + seconds / 2
                note(name, seconds)
                continue
            for key, _ in selector.select(left):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                    continue
                parts[key.fd].append(piece)
                total += len(piece)
                while keep_end and total > OUTPUT_LIMIT_BYTES and len(parts[output]) > 1:
                    oldest = len(parts[output].popleft())
                    left_out, total = left_out + oldest, total - oldest
                if total > OUTPUT_LIMIT_BYTES:
                    return Reason.MALFORMED
    kept = b"".join(outputs[0])
    if left_out:  # the first line is cut
        cut, _, kept = kept.partition(b"\n")
        left_out += len(cut) + 1
    return kept, b"".join(outputs[1]), left_out


def _cpu_ticks(group: int) -> int:
    """Return the CPU time of a process group in clock ticks."""
    stats = command_server.process_stats()
    return sum(int(fields[11]) + int(fields[12]) for _, fields in stats if int(fields[2]) == group)
