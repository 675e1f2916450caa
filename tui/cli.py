"""The command line: the dashboard, and the text commands that need no Textual."""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO, cast

from probes.base.data_files import read_toml
from probes.base.text import did_you_mean, printable
from tui.command_line.arguments import (
    EXIT_WRONG_USAGE,
    REFUSED,
    UsageError,
    add_arguments,
    add_node_options,
    add_output_options,
    interval,
    set_configured_defaults,
    set_help,
)
from tui.files import NotWritten
from tui.launch import (
    EXIT_CRASHED,
    EXIT_INTERRUPTED,
    SLURMD_SECONDS,
    ReportStream,
    is_for_nagios,
    write_syslog,
)
from tui.runtime.open_host import NoSuchHost, chosen_origin, moment_of, open_host, open_recording
from tui.settings.current import is_configured, use
from tui.settings.load import is_any, load

if TYPE_CHECKING:
    from tui.settings.configuration import Configuration

_DESCRIPTION = """\
htop for GPUDirect RDMA: is it working on this node, and if not, why?
Without a command, gdrtop opens the dashboard.
"""
_TABLES = read_toml(__name__, "cli.toml")
_COMMANDS: dict[str, str] = _TABLES["commands"]
_FLEET = ("check", "live", "hang", "bench", "watch")  # what gdrtop fleet does; without a word it checks
_HINTS = {word: f"; {hint}" for hint, words in _TABLES["hints"].items() for word in words}
# Commands that make garbage for longer than a moment.
_LONG = (
    *("bench", "diff", "do", "fleet", "hang", "live", "nccl-log"),
    *("prove", "ras", "read", "record", "repair", "report", "setup", "watch"),
)
_WITHOUT_CONFIGURATION = ("config", "schema", "help", "completion")  # they run when it has errors, too
_WITHOUT_NODE = ("nccl-log", "config", "schema", "help", "completion")
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of the system; they say nothing about the output
_WRONG_COMMAND = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")


class Command(Protocol):
    """A module of tui.commands."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own options."""

    def run(self, options: argparse.Namespace, out: TextIO) -> int:
        """Run the command and return its exit status."""


class _Refused(Exception):
    """Nothing is run, or no further; the arguments are sentences that say why."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit status 3.

    `fill` adds the options of a command when the command is used: loading all of them would delay the first
    paint.
    """

    fill: Callable[[argparse.ArgumentParser], None] | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the options, then parse."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse everything; an unknown option is reported with the help of its command."""
        options, more = self.parse_known_args(args, namespace)
        if more:
            words = [word for word in (options.command, vars(options).get("part")) if word]
            self.prog = " ".join([self.prog, *words])
            self.error(f"unrecognized arguments: {' '.join(more)}{self._meant(words, more[0])}")
        return options

    def _meant(self, words: Sequence[str], wrong: str) -> str:
        """Return the options of these commands that are like a wrong one, or where a file belongs."""
        if not wrong.startswith("-"):
            return f"; did you mean gdrtop env --lint {wrong}?" if words == ["env"] else ""
        parser: argparse.ArgumentParser = self
        names = {*parser._option_string_actions}
        for word in words:
            commands = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
            parser = commands.choices[word]
            names |= {*parser._option_string_actions}
        options = sorted(name[2:] for name in names if name.startswith("--"))
        return did_you_mean(wrong.partition("=")[0].lstrip("-"), options, 0.6, prefix="--")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a message; argparse itself would swallow an error on stdout."""
        if message and file is not None and file is sys.stdout:
            file.write(message)
            file.flush()
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        wrong = _WRONG_COMMAND.match(message)
        if wrong:
            word = wrong[1]
            names = [name for name in _COMMANDS if name not in ("schema", "help", "health-check")]
            hint = f"; did you mean gdrtop {word}?" if word in _COMMANDS else _HINTS.get(word)  # fleet diff
            hint = hint or did_you_mean(word, names) or f"; try {self.prog} --help"
            raise _Refused(f"unknown command {printable(word)!r}{hint}")
        text = printable(message)
        raise _Refused(text if text.endswith("?") else f"{text}; try {self.prog} --help")


def _command(name: str) -> Command:
    """Import the file of tui/commands, or of one of its folders, that has the name of the command."""
    directory, stem = f"{os.path.dirname(__file__)}/commands", name.replace("-", "_")
    places = (stem, f"{stem}/{stem}", *(f"{folder}/{stem}" for folder in sorted(os.listdir(directory))))
    place = next((place for place in places if os.path.exists(f"{directory}/{place}.py")), stem)
    return cast(Command, import_module(f"tui.commands.{place.replace('/', '.')}"))


def _fill(name: str, parser: argparse.ArgumentParser) -> None:
    if name not in _WITHOUT_NODE:
        add_node_options(parser, name)
    set_help(parser, name)
    _command(name).add_options(parser)
    add_output_options(parser)
    set_configured_defaults(parser, name)


def command_parser(names: Collection[str] = tuple(_COMMANDS)) -> _Parser:
    """Return the parser of the command line, with these commands."""
    parser = _Parser(prog="gdrtop", description=_DESCRIPTION, epilog=_TABLES["help"]["examples"])
    add_node_options(parser, with_defaults=True)
    add_output_options(parser, with_defaults=True)
    helps = {
        "--interval SECONDS": "refresh interval of the dashboard, 0.1 to 60 (default: 1)",
        "--read-only": "disable all actions and bandwidth tests",
        "-V --version": "print the version and exit",
    }
    add_arguments(parser, helps, interval={"type": interval, "default": 1.0})
    set_configured_defaults(parser)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=_Parser, prog=parser.prog
    )
    for name in names:
        summary = _COMMANDS[name]
        command = commands.add_parser(name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        command.fill = partial(_fill, name)
    return parser


def command_in(arguments: Sequence[str]) -> str:
    """Return the command that the arguments name; "" for none."""
    return next((word for word in arguments if word in _COMMANDS), "")


def _arguments(argv: Sequence[str]) -> list[str]:
    """Mark a `--demo` before what cannot be its name as one without; move a `--json` behind the command."""
    arguments = list(argv)
    place = next((place for place, word in enumerate(arguments) if word in _COMMANDS), 0)
    if "--json" in arguments[:place]:
        arguments.remove("--json")
        arguments.insert(arguments.index("--") if "--" in arguments else len(arguments), "--json")
    for place, word in enumerate(arguments[:-1]):
        if word == "--demo" and not _may_be_simulated(arguments[place + 1]):
            arguments[place] = "--demo="
    if command_in(arguments) == "fleet" and not {"-h", "--help", *_FLEET} & set(arguments):
        arguments.insert(arguments.index("fleet") + 1, "check")
    return arguments


def _may_be_simulated(word: str) -> bool:
    """Return whether a word behind `--demo` names a simulated node, or is like one; other words go on."""
    from probes.simulation.node.model.names import SIMULATED_NAMES

    name = re.split("[+*,]", word)[0]
    if word in ("", "list") or name in SIMULATED_NAMES:
        return True
    is_other = word.startswith("-") or word in _COMMANDS or word in _FLEET or "." in name
    return not is_other and bool(did_you_mean(name, SIMULATED_NAMES, 0.7))


def _list_demos() -> None:
    import textwrap

    from probes.simulation.faults.catalogue import FAULTS
    from probes.simulation.node.model.description import simulated_names, title
    from probes.simulation.node.model.names import SIMULATED_NAMES
    from tui.runtime.printing import text_width

    width = text_width(sys.stdout)

    def print_row(start: str, text: str) -> None:
        print(textwrap.fill(start + text, width, break_on_hyphens=False, subsequent_indent=" " * len(start)))

    names = simulated_names()
    for name in names:
        print_row(f"{name:<{max(map(len, names))}}  ", title(name))
    print("\nAppend faults to the name: --demo hgx-h100+no-gdr-path,port-down")
    print("If a node is named in parentheses, use the fault on that node.")
    longest = max(map(len, FAULTS))
    for fault in sorted(FAULTS.values(), key=lambda fault: fault.name):
        node = "" if fault.on == SIMULATED_NAMES[0] else f" ({fault.on})"
        print_row(f"  {fault.name:<{longest}}  ", f"{fault.summary}{node}")


def _dashboard(options: argparse.Namespace) -> int:
    from tui import dashboard

    recording = None if options.replay is None else open_recording(options)
    origin = chosen_origin(options) if recording is None else recording.origin
    if refusal := dashboard.refusal():
        raise _Refused(f"{refusal}; for text, use gdrtop check, gdrtop topo, gdrtop modules or gdrtop bench")
    ascii_only = dashboard.prepare(options.ascii, options.color)
    from tui.app import GdrtopApp
    from tui.runtime.memory import collect_garbage_rarely

    collect_garbage_rarely()
    if recording is not None:
        from tui.runtime.replay_source import ReplaySource

        replay = ReplaySource(recording)
        if options.at:
            replay.move(moment_of(recording.recording, options.at))
        return dashboard.run(
            GdrtopApp(lambda: recording, origin, options.interval, replay, ascii_only=ascii_only)
        )
    connected = open_host(options) if options.host else None  # before the screen, where a failure is printed
    return dashboard.run(
        GdrtopApp(
            lambda: connected or open_host(options),
            origin,
            options.interval,
            read_only=options.read_only,
            ascii_only=ascii_only,
        )
    )


def _refuse_errors(configuration: Configuration | None, options: argparse.Namespace) -> None:
    """Print what to know about the configuration; raise _Refused if nothing may run because of it."""
    if configuration is None or options.version or options.command in _WITHOUT_CONFIGURATION:
        return
    if configuration.errors:
        advice = "nothing was run; gdrtop config shows the configuration and all of its errors"
        raise _Refused(*configuration.errors, *configuration.notes, advice)
    for sentence in configuration.notes:
        print(f"gdrtop: {sentence}", file=sys.stderr)


def _refuse_useless(options: argparse.Namespace) -> None:
    """Raise _Refused for an option that would change nothing: who gives it believes that it does."""
    if options.command in _WITHOUT_NODE:
        return
    is_remote = bool(options.host or vars(options).get("node")) or options.command == "fleet"
    # What the configuration sets is a default for those nodes that are remote.
    if options.sudo and not is_remote and not _is_default(options, "sudo"):
        raise _Refused(
            "--sudo needs --host: this node is read with the rights that gdrtop has; use sudo gdrtop"
        )
    if options.over and not is_remote and not _is_default(options, "over"):
        raise _Refused("--over needs --host: it is how another node is reached")
    if options.seed and options.demo is None:
        raise _Refused("--seed needs --demo: it varies the values of a simulated node")


def _is_default(options: argparse.Namespace, name: str) -> bool:
    """Return whether the value of an option is that of the configuration."""
    return is_configured() and options.__dict__[name] == command_parser(()).get_default(name)


def _run(options: argparse.Namespace) -> int:
    if options.version:
        from tui.files.version import version

        print(f"gdrtop {version()}")
        if options.verbose:
            from tui.terminal.textual_version import description

            print(f"Python {sys.version.partition(' ')[0]}\n{description()}")
        return 0
    if options.demo == "list":
        _list_demos()
        return 0
    _refuse_useless(options)
    if options.host and options.command != "fleet" and "--host" in REFUSED.get(options.command, ()):
        raise _Refused(f"--host does not work with {options.command}; run it on the node")
    if options.command is None and options.verbose:
        raise _Refused("--verbose needs a command or --version")
    if options.command is None:
        return _dashboard(options)
    if options.verbose and options.command == "fleet":
        raise _Refused("--verbose explains a single node; use gdrtop check --verbose --host NODE")
    chosen = vars(options)
    if options.command in SLURMD_SECONDS or chosen.get("consumer") or chosen.get("quiet"):
        sys.stdout = cast(TextIO, ReportStream(sys.stdout))  # the exit status is the answer
    if sys.stdout is None and options.command != "record":
        raise _Refused("standard output is closed")
    if options.command == "completion":
        options.parser = command_parser()
    if options.command in _LONG:
        gc.enable()
    if options.command in ("fleet", "live", "watch"):
        from tui.runtime.memory import limit_malloc

        limit_malloc()
    from tui.runtime.printing import choose_color

    choose_color(options.color)
    if options.verbose:
        from probes.host.probe_thread import begin_log

        begin_log()
    try:
        return _command(options.command).run(options, sys.stdout)
    except UsageError as error:
        text = printable(str(error))
        words = " ".join(filter(None, (options.command, vars(options).get("part"))))
        hint = "" if text.endswith("?") else f"; try gdrtop {words} --help"
        raise _Refused(f"{text}{hint}") from None
    finally:
        if options.verbose:
            _print_sources(options.ascii)


def _print_sources(ascii_only: bool) -> None:
    """Print on stderr which sources were read, below what the command has printed."""
    from probes.host.probe_thread import end_log
    from tui.runtime.printing import print_lines
    from widgets.node.sources import draw_sources

    sources = end_log()
    if sys.stdout is not None:
        sys.stdout.flush()
    print_lines(draw_sources(sources), sys.stderr, ascii_only)


def _repeat_lost_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Raise KeyboardInterrupt again in a moment: Python drops it in a callback, as of a weak reference."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    import signal

    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


# A program that ends need not look for garbage, as Python does twice: a twentieth of the time of a check.
atexit.register(gc.freeze)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gdrtop` and return the exit status; with arguments, for a program that goes on afterwards."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    gc.disable()  # imports leave no garbage, and looking for it would take a tenth of the time of a check
    command = command_in(arguments)
    before, stdout = sys.unraisablehook, sys.stdout
    sys.unraisablehook = _repeat_lost_interrupt
    try:
        if command not in SLURMD_SECONDS:
            return _concluded(command, arguments, *_main(arguments))
        with _time_limit(command, arguments, goes_on=argv is not None):
            return _concluded(command, arguments, *_main(arguments))
    finally:
        sys.unraisablehook, sys.stdout = before, stdout
        if argv is not None:
            gc.enable()


def _concluded(command: str, arguments: list[str], status: int, failures: Sequence[str]) -> int:
    """Report what went wrong in gdrtop itself, and return the status that the caller expects."""
    if command in SLURMD_SECONDS and status > 1:
        says_nothing = (
            f"gdrtop failed with status {status}, which says nothing about the node; try it with --dry-run"
        )
        failures = [*failures, says_nothing]
        job = os.environ.get("SLURM_JOB_ID", "")
        for sentence in failures:
            write_syslog(printable(f"{command}{f', job {job}' if job else ''}: {sentence}", 1000))
        status = 0
    elif is_for_nagios(arguments) and status not in range(EXIT_WRONG_USAGE):
        from tui.commands.consumers.contracts import unknown

        if failures or status != EXIT_WRONG_USAGE:
            print(unknown(" ".join(failures) or f"gdrtop ended with status {status}"))
        status = EXIT_WRONG_USAGE
    for sentence in failures:
        print(sentence if sentence.startswith("gdrtop ") else f"gdrtop: {sentence}", file=sys.stderr)
    return status


@contextmanager
def _time_limit(command: str, arguments: Sequence[str], goes_on: bool) -> Iterator[None]:
    """End with 0 if the configuration cannot be read in time; a Session has what is left of the time.

    `goes_on`: whether the program does so afterwards, and needs its handler again.
    """
    import signal

    seconds = SLURMD_SECONDS[command]
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        option, _, value = word.partition("=")
        if len(option) > 3 and "--limit".startswith(option) and (value or after).isdecimal():
            seconds = min(int(value or after), 300)

    def expire(*_: object) -> None:
        line = f"{command}: no result within {seconds} s"
        write_syslog(line)
        print(f"gdrtop {line}", file=sys.stderr, flush=True)
        os._exit(0)  # a file may hang in the kernel

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if goes_on:  # without memory, Python crashes in signal(): so nothing is asked of it at the end
            signal.signal(signal.SIGALRM, before)


def _main(arguments: list[str]) -> tuple[int, Sequence[str]]:
    """Run the command; return its exit status, and what went wrong in gdrtop itself."""
    status = 0
    try:
        try:
            if arguments[:1] == ["__complete"]:
                from tui.command_line.arguments import words

                print(*words(*arguments[1:3]), sep="\n")
                return 0, ()
            configuration = load() if is_any() else None
            use(configuration)
            # A parser takes half a millisecond to make, so only --help makes all.
            has_help = any(word.startswith("-") and "h" in word for word in arguments)
            needed = [name for name in _COMMANDS if has_help or name in arguments]
            options = command_parser(needed).parse_args(arguments)
            _refuse_errors(configuration, options)
            status = _run(options)
        except SystemExit as stop:  # argparse has printed its message
            status = stop.code if isinstance(stop.code, int) else EXIT_WRONG_USAGE
        if sys.stdout is not None:
            sys.stdout.flush()
        return status, ()
    except (_Refused, NoSuchHost, NotWritten) as error:
        return EXIT_WRONG_USAGE, [str(sentence) for sentence in error.args]
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED, ()
    except BrokenPipeError:  # head or less has exited
        return status, ()
    except Exception as error:
        if (
            isinstance(error, OSError) and error.filename is None and error.errno not in _EXHAUSTED
        ):  # of a stream
            return status or EXIT_WRONG_USAGE, [f"the output cannot be written: {error.strerror}"]
        from tui.files.crash_file import describe_crash

        return EXIT_CRASHED, [describe_crash(error)]
