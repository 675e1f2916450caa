"""The command line: the dashboard, and the text commands that need no Textual."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from probes.base.text import printable
from tui.open_host import NoSuchHost, chosen_origin, open_host, open_recording

if TYPE_CHECKING:
    from tui.app import GdrtopApp

# Monitoring's convention: 0 fine, 1 warning, 2 critical, 3 unknown. argparse's own 2 would read as critical.
EXIT_WRONG_USAGE = 3
EXIT_INTERRUPTED = 130

_EXAMPLES = """\
examples:
  gdrtop                          the dashboard of this node
  gdrtop --demo                   the dashboard of a simulated node; --demo list shows all
  gdrtop check                    what is wrong here, why, and how to fix it
  gdrtop check acs-redirect-enabled
                                  one check with all details
  gdrtop topo --json              topology and path types, for a script
  gdrtop modules                  the kernel modules in load order
  gdrtop do --list                what gdrtop can do here; gdrtop do load-modules runs one action
  gdrtop bench                    measure the first GPU over its best NIC; gdrtop bench --list
  gdrtop topo --root /host        a node whose / is mounted at /host, or a dumped tree
  gdrtop record node.tar.gz       record 10 s of this node to one file, for somewhere else
  gdrtop --replay node.tar.gz     the dashboard of a recorded node

Exit status 3: wrong usage, no such node, or the output cannot be written.
"""

_COMMANDS = {
    "check": "check the node: what keeps GPUDirect RDMA from working well, why, and how to fix it",
    "topo": "print the topology, the affinity matrix and each GPU's best NIC",
    "modules": "print the kernel modules in load order, and why one is missing",
}
# What people type from other tools, and what they mean here.
_MEANT = {
    **dict.fromkeys(("doctor", "diagnose", "status", "health", "verdict"), "; did you mean gdrtop check?"),
    **dict.fromkeys(("watch", "top", "monitor", "dashboard"), "; gdrtop alone is the dashboard"),
    **dict.fromkeys(("fix", "actions", "run"), "; did you mean gdrtop do?"),
    "help": "; did you mean gdrtop --help?",
    "replay": "; did you mean gdrtop --replay FILE?",
    "demo": "; did you mean gdrtop --demo?",
}
_WRONG_COMMAND = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")
_DO = "list the actions that are possible on this node, or run one after showing its plan"
_BENCH = "measure bandwidth and latency between GPUs and NICs (see gdrtop bench --help)"
_SCHEMA = "print the JSON Schema of a command's --json, or list the schemas"
_RECORD = "record this node to one file, to be replayed anywhere"
MOST_SECONDS = 3600


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit status 3.

    `fill` adds its options when they are needed: those of a command that is not used cost the first paint.
    """

    fill: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses, with all options."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses all; what is wrong about a command is told with the command's own help."""
        options, more = self.parse_known_args(args, namespace)
        if more:
            self.prog += f" {options.command}" if options.command else ""
            self.error(f"unrecognized arguments: {' '.join(more)}")
        return options

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a message; an error on stdout is not swallowed, as argparse does."""
        if message and file is not None and file is sys.stdout:
            file.write(message)
            file.flush()
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        wrong = _WRONG_COMMAND.match(message)
        if wrong:
            word = wrong[1]
            near = _near(word, (*_COMMANDS, "do", "bench", "record"))
            hint = _MEANT.get(word, near) or f"; try {self.prog} --help"
            self.exit(EXIT_WRONG_USAGE, f"gdrtop: no command {printable(word)!r}{hint}\n")
        self.exit(EXIT_WRONG_USAGE, f"gdrtop: {printable(message)}; try {self.prog} --help\n")


def _positive_interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 60.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 60")
    return seconds


def _recorded_seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= MOST_SECONDS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of whole seconds, 1 to {MOST_SECONDS}")
    return int(text)


def _near(word: str, names: Iterable[str]) -> str:
    """As "; did you mean check or do?"; "" where nothing is like the word."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(names), cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _check_id(text: str) -> str:
    from probes.checks.registry import CHECKS

    known = {check.id for check in CHECKS}
    if text not in known:
        near = _near(text, known) or "; gdrtop check --all lists all"
        raise argparse.ArgumentTypeError(f"no check {text!r}{near}")
    return text


def _check_ids(text: str) -> tuple[str, ...]:
    return tuple(_check_id(one.strip()) for one in text.split(","))


def _node_options(parser: argparse.ArgumentParser, defaults: bool) -> None:
    """Which node is read; both before and after a command, hence no defaults the second time."""
    absent = argparse.SUPPRESS
    parser.add_argument(
        "--root",
        metavar="DIR",
        default="/" if defaults else absent,
        help="read the tree below DIR (default: /)",
    )
    parser.add_argument(
        "--demo",
        metavar="NAME",
        nargs="?",
        const="",
        default=None if defaults else absent,
        help="a simulated node instead of this one; 'list' shows all",
    )
    parser.add_argument(
        "--replay",
        metavar="FILE",
        default=None if defaults else absent,
        help="a file written by `gdrtop record`, instead of this node",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0 if defaults else absent,
        help="other figures on a simulated node",
    )
    parser.add_argument(
        "--ascii",
        action="store_true",
        default=False if defaults else absent,
        help="draw with ASCII characters only",
    )


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from tui.commands.bench.options import add_options

    add_options(parser)


def _parser() -> _Parser:
    parser = _Parser(
        prog="gdrtop",
        description="htop for GPUDirect RDMA: is it working on this node, and if not, why?",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _node_options(parser, defaults=True)
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_positive_interval,
        default=1.0,
        help="seconds between readings of the dashboard (default: 1)",
    )
    parser.add_argument("--read-only", action="store_true", help="do not offer to change or measure anything")
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, told in _COMMANDS.items():
        command = commands.add_parser(name, help=told, description=told)
        _node_options(command, defaults=False)
        command.add_argument("--json", action="store_true", help="as JSON")
        if name == "check":
            for option, told in (("--only", "run only these checks"), ("--skip", "do not run these checks")):
                command.add_argument(option, metavar="ID,…", type=_check_ids, default=(), help=told)
            command.add_argument(
                "ids",
                metavar="ID",
                nargs="*",
                type=_check_id,
                help="show only these checks, with all details",
            )
            command.add_argument(
                "--all", action="store_true", help="also list the checks that are ok (--json always does)"
            )
    _add_do(commands.add_parser("do", help=_DO, description=_DO))
    bench = commands.add_parser("bench", help=_BENCH)
    _node_options(bench, defaults=False)
    bench.fill = _add_bench
    schema = commands.add_parser("schema", help=_SCHEMA, description=_SCHEMA)
    schema.add_argument("kind", metavar="COMMAND", nargs="?", help="check, topo, modules, do or bench")
    record = commands.add_parser("record", help=_RECORD, description=_RECORD)
    _node_options(record, defaults=False)
    record.add_argument(
        "file", metavar="FILE", help="the file to write, a .tar.gz; an existing file is not overwritten"
    )
    record.add_argument(
        "--seconds",
        metavar="N",
        type=_recorded_seconds,
        default=10,
        help=f"how long, one reading a second, 1 to {MOST_SECONDS} (default: 10); Ctrl-C stops early",
    )
    record.add_argument(
        "--redact",
        action="store_true",
        help="replace names, addresses, GUIDs, serials and arguments by tokens",
    )
    return parser


def _add_do(do: argparse.ArgumentParser) -> None:
    _node_options(do, defaults=False)
    do.add_argument(
        "action", metavar="ACTION", nargs="?", help="what to do; without it, or with --list, the list"
    )
    do.add_argument("--list", action="store_true", help="list all actions, one per line")
    do.add_argument("--json", action="store_true", help="the list as JSON")
    do.add_argument("--dry-run", action="store_true", help="show the plan and run nothing")
    do.add_argument("--script", action="store_true", help="print the plan as a shell script and run nothing")
    do.add_argument("--yes", action="store_true", help="run it without asking")
    do.add_argument(
        "--disturb",
        metavar="NODE",
        default="",
        help="run it even if it affects jobs or the network; NODE is this host's name",
    )


def _schema(options: argparse.Namespace, out: TextIO) -> int:
    from tui.commands import schema

    if options.kind not in (None, *schema.KINDS):
        _parser().error(f"no schema {options.kind!r}; there are: {', '.join(schema.KINDS)}")
    return schema.command(options.kind, out)


def _do(options: argparse.Namespace, out: TextIO) -> int:
    from tui.commands import do

    if options.action is not None and (options.list or options.json):
        _parser().error("--list and --json list all actions: leave out ACTION")
    return do.command(
        open_host(options),
        out,
        options.action,
        as_json=options.json,
        ascii_only=options.ascii,
        dry_run=options.dry_run,
        script=options.script,
        yes=options.yes,
        named=options.disturb,
        read_only=options.read_only,
        answers=sys.stdin,
    )


def _bench(options: argparse.Namespace, out: TextIO) -> int:
    from tui.commands.bench import command as bench
    from tui.commands.bench.options import parse_options

    try:
        bench_options = parse_options(options)
    except argparse.ArgumentTypeError as error:
        parser = _parser()
        parser.prog += f" {options.command}"
        parser.error(str(error))
    return bench.command(
        open_host(options),
        out,
        bench_options,
        ascii_only=options.ascii,
        read_only=options.read_only,
        answers=sys.stdin,
    )


def _arguments(argv: Sequence[str]) -> list[str]:
    """Mark a `--demo` right before a command as one without a name."""
    told = list(argv)
    for place, word in enumerate(told[:-1]):
        if word == "--demo" and told[place + 1] in (*_COMMANDS, "do", "bench", "schema", "record"):
            told[place] = "--demo="
    return told


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; Python has None for one that was closed."""
    return stream is not None and stream.isatty()


def _list_demos() -> None:
    import textwrap

    from probes.simulation.faults.catalogue import FAULTS
    from probes.simulation.node.description import simulated_names, title
    from tui.runtime.printing import text_width

    for name in simulated_names():
        print(f"{name:<10} {title(name)}")
    print("\nAppend faults to the name: --demo hgx-h100+no-gdr-path,port-down")
    names = " ".join(sorted(FAULTS))
    width = text_width(sys.stdout)
    print(textwrap.fill(names, width, break_on_hyphens=False, initial_indent="  ", subsequent_indent="  "))


def _dashboard(options: argparse.Namespace) -> int:
    recording = None if options.replay is None else open_recording(options)
    origin = chosen_origin(options) if recording is None else recording.origin
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)) or os.environ.get("TERM", "dumb") == "dumb":
        print(
            "gdrtop: the dashboard needs a terminal (TERM other than dumb);"
            " for text use: gdrtop check, gdrtop topo, gdrtop modules, gdrtop bench",
            file=sys.stderr,
        )
        return EXIT_WRONG_USAGE
    from tui.runtime.printing import is_plain

    ascii_only = is_plain(sys.stdout, options.ascii)
    from tui.app import GdrtopApp

    if recording is not None:
        from tui.runtime.replay_source import ReplaySource

        replay = ReplaySource(recording)
        app = GdrtopApp(lambda: recording, origin, options.interval, replay, ascii_only=ascii_only)
        app.run()
        return app.return_code or 0
    app = GdrtopApp(lambda: open_host(options), origin, options.interval, None, options.read_only, ascii_only)
    try:
        app.run()
    finally:  # the terminal may have gone, and a step is under way
        app.quitting.finish()
    return _ended(app)


def _ended(app: GdrtopApp) -> int:
    """The exit status; a recording under way is put in its place."""
    from probes.recording.format import RecordingError

    try:
        recorded = app.readings.end_recording()
    except RecordingError as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    if recorded is not None:
        print(f"recorded {recorded}\n{recorded.privacy()}", file=sys.stderr)
    if app.quitting.is_stuck:  # Python's own end would wait for the terminal, for ever
        os._exit(app.return_code or 0)
    return app.return_code or 0


def _run(options: argparse.Namespace) -> int:
    if options.version:
        from tui.files.version import version

        print(f"gdrtop {version()}")
        return 0
    if options.demo == "list":
        _list_demos()
        return 0
    if options.command is None:
        return _dashboard(options)
    if options.command == "record":
        from tui.commands import record

        return record.command(open_host(options), options.file, options.seconds, options.redact)
    if sys.stdout is None:
        print("gdrtop: standard output is closed; nothing can be printed", file=sys.stderr)
        return EXIT_WRONG_USAGE
    if options.command == "schema":
        return _schema(options, sys.stdout)
    if options.command == "do":
        return _do(options, sys.stdout)
    if options.command == "bench":
        return _bench(options, sys.stdout)
    if options.command == "check":
        from tui.commands.check import write_check

        host = open_host(options)
        return write_check(
            host,
            sys.stdout,
            options.json,
            options.ascii,
            options.only,
            options.skip,
            options.all,
            options.ids,
        )
    from tui.commands import topo as report

    write = report.write_topology if options.command == "topo" else report.write_modules
    write(open_host(options), sys.stdout, as_json=options.json, ascii_only=options.ascii)
    return 0


def _discard_output() -> None:
    """Keep Python from complaining once more when it closes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """The `gdrtop` command; gives the exit status."""
    status = 0
    try:
        try:
            status = _run(_parser().parse_args(_arguments(sys.argv[1:] if argv is None else argv)))
        except SystemExit as leaving:  # argparse has said what there was to say
            status = leaving.code if isinstance(leaving.code, int) else EXIT_WRONG_USAGE
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except NoSuchHost as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has left
        _discard_output()
        return status
    except OSError as error:
        print(f"gdrtop: the output cannot be written: {error.strerror}", file=sys.stderr)
        _discard_output()
        return status or EXIT_WRONG_USAGE
