"""The command line: the dashboard, and the text commands that need no Textual."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from probes.text import printable
from tui.choose_host import NoSuchHost, chosen_origin, open_host

# Monitoring's convention: 0 fine, 1 warning, 2 critical, 3 unknown. argparse's own 2 would read as critical.
EXIT_WRONG_USAGE = 3
EXIT_INTERRUPTED = 130

_EXAMPLES = """\
examples:
  gdrtop                          the dashboard of this node
  gdrtop --demo                   … of a simulated node; --demo list names them all
  gdrtop topo --json              topology and path types, for a script
  gdrtop modules                  the kernel modules in load order
  gdrtop topo --root /host        a node whose / is mounted at /host, or a dumped tree

Wrong usage, no such node and output that cannot be written end with exit status 3.
"""

_COMMANDS = {
    "topo": "print the topology, the affinity matrix and each GPU's best NIC",
    "modules": "print the kernel modules in load order, and why one is missing",
}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit status 3."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_WRONG_USAGE, f"gdrtop: {printable(message)}; try gdrtop --help\n")


def _positive_interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 60.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 60")
    return seconds


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
        help="a simulated node instead of this one; 'list' names them",
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
        help="text commands: draw boxes with + - |",
    )


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument("-V", "--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, told in _COMMANDS.items():
        command = commands.add_parser(name, help=told, description=told)
        _node_options(command, defaults=False)
        command.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _arguments(argv: Sequence[str]) -> list[str]:
    """The arguments with a `--demo` right before a command marked as one without a name."""
    told = list(argv)
    for place, word in enumerate(told[:-1]):
        if word == "--demo" and told[place + 1] in _COMMANDS:
            told[place] = "--demo="
    return told


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; Python has None for one that was closed."""
    return stream is not None and stream.isatty()


def _list_demos() -> None:
    from probes.simulation import simulated_names, title

    for name in simulated_names():
        print(f"{name:<10} {title(name)}")


def _dashboard(options: argparse.Namespace) -> int:
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)) or os.environ.get("TERM", "dumb") == "dumb":
        print(
            "gdrtop: the dashboard needs a terminal (TERM other than dumb);"
            " for text use: gdrtop topo, gdrtop modules",
            file=sys.stderr,
        )
        return EXIT_WRONG_USAGE
    origin = chosen_origin(options)
    from tui.app import GdrtopApp

    app = GdrtopApp(lambda: open_host(options), origin, options.interval)
    app.run()
    return app.return_code or 0


def _version() -> str:
    from importlib import metadata  # 20 ms, for a question asked once in a life

    try:
        return metadata.version("gdrtop")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _run(options: argparse.Namespace) -> int:
    if options.version:
        print(f"gdrtop {_version()}")
        return 0
    if options.demo == "list":
        _list_demos()
        return 0
    if options.command is None:
        return _dashboard(options)
    if sys.stdout is None:
        print("gdrtop: standard output is closed; nothing can be printed", file=sys.stderr)
        return EXIT_WRONG_USAGE
    from tui import report

    write = report.write_topology if options.command == "topo" else report.write_modules
    write(open_host(options), sys.stdout, as_json=options.json, ascii_only=options.ascii)
    return 0


def _discard_output() -> None:
    """Keeps Python from complaining once more when it closes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """The `gdrtop` command; gives the exit status."""
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
        return 0
    except OSError as error:
        print(f"gdrtop: the output cannot be written: {error.strerror}", file=sys.stderr)
        _discard_output()
        return EXIT_WRONG_USAGE
