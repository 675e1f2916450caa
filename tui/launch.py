"""Start gdrtop so that only a finding ends like one: the console script, `python -m gdrtop` and `-m tui`.

It is installed as the module `gdrtop`, because PYTHONPATH may have another program's tui. It imports only
what Python has loaded to start, and its syntax is that of Python 3.6, where it says which Python is needed.
"""

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would be one import more
    from collections.abc import Callable
    from typing import TextIO

EXIT_NOT_STARTED = 3  # "unknown" for whatever runs monitoring plugins
EXIT_CRASHED = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130
# slurmd drains a node for any status but 0, so what goes wrong in gdrtop itself is none for it. After so many
# seconds they give up; slurmd kills a health check after 60 (slurm.conf(5), HealthCheckProgram).
SLURMD_SECONDS = {"prolog": 20, "epilog": 20, "health-check": 50}
_OLDEST = (3, 10)
_LOG_ERR = 3  # syslog(3)


class ReportStream:
    """A standard stream for what is only a report: where it cannot be written, nothing else changes.

    `stream`: None if it is closed; `waits`: whether to wait for a reader that does not read.
    """

    def __init__(self, stream: "TextIO | None", waits: bool = True) -> None:
        self._is_closed, self._waits = stream is None, waits
        self._stream: TextIO = io.StringIO() if stream is None else stream

    def write(self, text: str) -> int:
        """Write the text, or as much as the stream takes."""
        if not self._is_closed:
            self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Write what is left."""
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _try(self, function: "Callable[..., object]", *arguments: str) -> None:
        try:
            descriptor = -1 if self._waits else self._stream.fileno()
            was_blocking = descriptor >= 0 and os.get_blocking(descriptor)
            if was_blocking:
                os.set_blocking(descriptor, False)
            try:
                function(*arguments)
            finally:
                if was_blocking:
                    os.set_blocking(descriptor, True)
        except (OSError, ValueError):  # full, without a reader, closed
            pass


def write_syslog(line: str, priority: int = _LOG_ERR) -> None:
    """Write a line to the system log."""
    import syslog

    syslog.openlog("gdrtop", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(priority, line)


def slurmd_command(words: "list[str]") -> str:
    """Return the first word that is a command which slurmd runs; "" for none."""
    return next((word for word in words if word in SLURMD_SECONDS), "")


def is_for_nagios(words: "list[str]") -> bool:
    """Return whether a monitoring system reads stdout, whatever goes wrong."""
    return "check" in words and " --for nagios " in f" {' '.join(words)} ".replace("=", " ")


def main() -> int:
    """Run gdrtop, and return its exit status; nothing that fails here or in it ends like a finding."""
    words = sys.argv[1:]
    # Who asks is found out now: later there may be no memory for it.
    command, for_nagios = slurmd_command(words), is_for_nagios(words)
    begun = False
    try:
        _open_standard_streams(words)
        if sys.version_info < _OLDEST:
            version = ".".join(map(str, sys.version_info[:2]))
            raise ImportError(f"it needs Python 3.10 or newer, and this is {version}")
        _import_own_packages()
        __import__("tui.cli")
        begun = True
        cli = sys.modules["tui.cli"]
        command = slurmd_command([cli.command_in(words)])  # that of `gdrtop help prolog` is another one
        status: int = cli.main()
    except BaseException as error:
        _fail(command, for_nagios, error, begun)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BaseException:
        os._exit(status)  # Python itself would try once more, and end with 120
    if command:
        os._exit(status)  # without memory, Python may crash where it ends
    return status


def _fail(command: str, for_nagios: bool, error: BaseException, begun: bool) -> None:
    """Say what went wrong in gdrtop itself, as far as possible, and end; it needs almost no memory."""
    line = "gdrtop stopped because of an error\n"
    status = EXIT_NOT_STARTED if for_nagios else EXIT_CRASHED
    try:
        if not begun and isinstance(error, (ImportError, SyntaxError)):
            status, line = EXIT_NOT_STARTED, f"gdrtop cannot start: {error}\n"
        elif isinstance(error, KeyboardInterrupt):
            status, line = EXIT_INTERRUPTED, ""
        else:
            line = f"gdrtop stopped because of an error: {type(error).__name__}: {error}\n"
        if for_nagios:
            status = EXIT_NOT_STARTED
            os.write(1, f"GDRTOP UNKNOWN - {line}".encode("ascii", "replace"))
        if command:
            status = 0
            write_syslog(f"{command}: {line.strip()}; this says nothing about the node")
    except BaseException:  # no memory, no descriptors, no module, no stream
        pass
    try:
        if command:
            os.set_blocking(2, False)
        os.write(2, line.encode("ascii", "replace"))
        if command:
            os.set_blocking(2, True)
    except BaseException:
        pass
    os._exit(0 if command else status)


def _open_standard_streams(words: "list[str]") -> None:
    """Let no file that gdrtop opens become a closed standard stream, and stderr change no exit status."""
    descriptor = 0
    while descriptor <= 2:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        descriptor += 1
    sys.stderr = ReportStream(sys.stderr, not slurmd_command(words))


def _import_own_packages() -> None:
    """Import gdrtop's packages from where this file is installed, whatever PYTHONPATH has of the same names.

    Their modules are then found in them. An editable installation has only this file there.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [here, os.path.dirname(here), *sys.path]
    own = next((path for path in paths if os.path.isfile(os.path.join(path, "tui", "launch.py"))), here)
    sys.path.insert(0, own)
    for package in ("tui", "probes", "widgets"):
        __import__(package)
    sys.path.remove(own)


if __name__ == "__main__":
    sys.exit(main())
