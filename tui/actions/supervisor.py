"""Run a plan that may cut off the terminal in a supervisor: a process that outlives gdrtop and its session.

For root, the supervisor is a transient systemd unit (systemd-run(1)), which a logout never ends, whatever
KillUserProcesses= of logind says. Otherwise it is a process in its own session. It takes the lock, runs the
steps and writes the audit log like any run, and writes each event to a file, which gdrtop follows. A hangup,
Ctrl-C or quitting gdrtop ends the following and never the run, so that what was unloaded is loaded again.

gdrtop writes an order beside the file of events. The supervisor claims it by removing it; if gdrtop has
removed it first, nothing runs.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from probes.base.codec import Codec
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.host.machine.command import TRUSTED_PATH, find_command
from probes.host.machine.local import LocalHost
from tui.actions.audit_log import Actor, Audit, AuditLogFile
from tui.actions.events import Printed, RunBegan, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded
from tui.actions.local_commands import LocalCommands
from tui.actions.runner import Runner
from tui.runtime.lock import ActionLock, LockTaken, open_own_directory

_ORDER_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16
_POLL_SECONDS = 0.1
_START_SECONDS = 30.0
UNIT_SECONDS = 10.0  # to start; SELinux may keep systemd from running a program in a home directory
SYSTEMD = "/run/systemd/system"  # sd_booted(3)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ENVIRONMENT = {"PATH": ":".join(TRUSTED_PATH), "LC_ALL": "C.UTF-8"}
# sys.path is passed as arguments, because systemd and -I drop it. gdrtop's own directory comes first.
PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from tui.actions.supervisor import main; main(sys.argv[1])"

CODEC = Codec(clean=str)  # text stays as it is


@frozen
class Order:
    """A confirmed run, and where it is logged."""

    action: str
    plan: Plan
    actor: Actor
    log: str
    directory: str  # of the lock, and of the files that both use


# What gdrtop and the supervisor write to each other, as JSON


def event_json(event: RunEvent) -> dict[str, Any]:
    """Return an event as a JSON object, without the plan, which both sides know."""
    if isinstance(event, RunBegan):
        return {"event": "run began", "as_root": event.as_root}
    if isinstance(event, StepBegan):
        return {"event": "step began", "number": event.number}
    if isinstance(event, Printed):
        return {"event": "printed", "text": event.text}
    if isinstance(event, StepEnded):
        return {"event": "step ended", **CODEC.encode(event)}
    return {"event": "run ended", "outcome": event.outcome.value, "why": event.why, "left": len(event.left)}


def event_of(fields: dict[str, Any], plan: Plan, where: str) -> RunEvent | None:
    """Return the event in a JSON object; None for the supervisor's first line. `where` names its process."""
    kind = fields.pop("event")
    if kind == "run began":
        return RunBegan(plan, f"{fields['as_root']}, detached from this terminal ({where})")
    if kind == "step began":
        return StepBegan(fields["number"], plan.steps[fields["number"] - 1])
    if kind == "printed":
        return Printed(fields["text"])
    if kind == "step ended":
        ended: StepEnded = CODEC.decode(StepEnded, fields)
        return ended
    if kind == "run ended":
        left = plan.steps[len(plan.steps) - fields["left"] :] if fields["left"] else ()
        return RunEnded(RunOutcome(fields["outcome"]), fields["why"], left)
    return None


# In gdrtop


class DetachedRun:
    """A plan in a supervisor; `run` starts and follows it."""

    def __init__(self, order: Order, on_event: Callable[[RunEvent], None]) -> None:
        self._order, self._on_event = order, on_event
        self._detached = threading.Event()  # set: follow no longer
        self._where = ""
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self, why: str) -> None:
        """Stop following the run, which goes on; may be called from any thread."""
        del why
        self._detached.set()

    def run(self) -> RunEnded:
        """Start it, and pass on its events until it ends."""
        ended = self._run()
        self._on_event(ended)
        return ended

    def _run(self) -> RunEnded:
        steps = self._order.plan.steps
        name = f"run-{time.time():.0f}-{os.getpid()}"
        order, events = (os.path.join(self._order.directory, f"{name}.{kind}") for kind in ("order", "jsonl"))
        try:
            os.close(open_own_directory(self._order.directory))
            _create(events, b"")
            reading = os.open(events, os.O_RDONLY | _OPEN)
        except OSError as error:
            return RunEnded(RunOutcome.REFUSED, f"nothing was run: {events}: {error.strerror}", steps)
        try:
            ended = self._started(f"gdrtop-{name}", order, reading)
        except OSError as error:
            ended = RunEnded(RunOutcome.REFUSED, f"nothing was run: {error.strerror}", steps)
        finally:
            os.close(reading)
            _remove(order)
        if ended.outcome is not RunOutcome.STILL_RUNNING:
            _remove(events)
        return ended

    def _started(self, unit: str, order: str, reading: int) -> RunEnded:
        """Start the supervisor as a unit, else in its own session, and follow it."""
        content = json.dumps(CODEC.encode(self._order)).encode()
        for start, seconds in ((self._start_unit, UNIT_SECONDS), (self._start_session, _START_SECONDS)):
            _create(order, content)
            ended = self._follow(reading, order, seconds) if start(unit, order) else None
            if ended is not None:
                return ended
            _remove(order)
        return RunEnded(
            RunOutcome.REFUSED, f"nothing was run: {self._where} did not start", self._order.plan.steps
        )

    def _start_unit(self, unit: str, order: str) -> bool:
        starter = find_command("systemd-run") if os.geteuid() == 0 and os.path.isdir(SYSTEMD) else None
        if starter is None:
            return False
        self._where = f"unit {unit}"
        words = [starter, "--quiet", "--collect", f"--unit={unit}", "--description=gdrtop action", "--"]
        return _succeeds([*words, *_program(order)], _ENVIRONMENT)

    def _start_session(self, unit: str, order: str) -> bool:
        del unit
        self._process = subprocess.Popen(
            _program(order),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            umask=0o022,
            start_new_session=True,
        )
        self._where = f"process {self._process.pid}"
        return True

    def _follow(self, reading: int, order: str, seconds: float) -> RunEnded | None:
        """Pass on events until the run ends; return None if it did not begin in time and never will."""
        began = time.monotonic()
        has_begun = False
        pending = b""
        while not self._detached.is_set():
            is_gone = has_begun and _is_unlocked(reading)  # checked before the last read
            piece = os.read(reading, _PIECE_BYTES)
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                has_begun = True
                try:
                    event = event_of(json.loads(line), self._order.plan, self._where)
                except ValueError:  # half a line: the file system was full
                    continue
                if isinstance(event, RunEnded):
                    self._reap()
                    return event
                if event is not None:
                    self._on_event(event)
            if piece:
                continue
            if is_gone:
                return RunEnded(RunOutcome.UNKNOWN, f"{self._where} exited before the run finished")
            late = self._reap() or time.monotonic() - began > seconds
            if not has_begun and late:
                if _remove(order):
                    return None
                if _is_unlocked(reading):  # it has claimed the order and died
                    return RunEnded(RunOutcome.UNKNOWN, f"{self._where} exited before the run finished")
            self._detached.wait(_POLL_SECONDS)
        if not has_begun and _remove(order):
            return RunEnded(RunOutcome.STOPPED, "nothing was run", self._order.plan.steps)
        return RunEnded(
            RunOutcome.STILL_RUNNING,
            f"still running without gdrtop ({self._where}); History will show the result",
        )

    def _reap(self) -> bool:
        return self._process is not None and self._process.poll() is not None


def _program(order: str) -> list[str]:
    own = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    return [sys.executable, "-I", "-c", PROGRAM, order, own, *map(os.path.abspath, sys.path)]


def _succeeds(argv: list[str], environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            cwd="/",
            timeout=_START_SECONDS,
        )
    except subprocess.TimeoutExpired:  # it may have started the unit; the order shows whether it has
        return True
    return done.returncode == 0


def _create(path: str, content: bytes) -> None:
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(0, "the file system is full")
    finally:
        os.close(descriptor)


def _remove(path: str) -> bool:
    """Remove a file; return whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _is_unlocked(descriptor: int) -> bool:
    """Return whether the supervisor has ended: it keeps the file of events locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# In the supervisor


def main(path: str) -> None:
    """Claim an order and run it to its end; do nothing if gdrtop has removed it."""
    try:
        events = os.open(path.removesuffix(".order") + ".jsonl", os.O_WRONLY | os.O_APPEND | _OPEN)
    except FileNotFoundError:
        return
    fcntl.flock(events, fcntl.LOCK_EX)  # first, so that whoever claims it is known to be alive
    content = _claimed(path)
    if content is None:
        return
    order: Order = CODEC.decode(Order, json.loads(content))

    def write(fields: dict[str, Any]) -> None:
        try:
            os.write(events, json.dumps(fields).encode() + b"\n")
        except OSError:  # the file system is full; the audit log has the outcome
            return

    write({"event": "supervisor"})
    try:
        with ActionLock(order.directory) as lock:
            audit = Audit(AuditLogFile(order.log), dataclasses.replace(order.actor, pid=os.getpid()))
            commands = LocalCommands(keep=(lock.descriptor,))
            runner = Runner(LocalHost(), commands, audit, lambda event: write(event_json(event)))
            # Handlers, not SIG_IGN, which the steps would inherit.
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, lambda *_: None)
            signal.signal(signal.SIGTERM, lambda *_: runner.stop("its supervisor was terminated"))
            runner.run(order.action, order.plan)
    except LockTaken as taken:
        write(event_json(RunEnded(RunOutcome.REFUSED, str(taken), order.plan.steps)))


def _claimed(path: str) -> bytes | None:
    """Return the order and remove it, so that it runs only once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        content = b""
        while piece := os.read(descriptor, _PIECE_BYTES):
            content += piece
            if len(content) > _ORDER_BYTES:
                return None
    finally:
        os.close(descriptor)
    return content if _remove(path) else None
