"""The man page gdrtop(1), from the manual and the command line's parser."""

import argparse
import re
import textwrap
from collections.abc import Collection

from docutils.core import publish_string
from myst_parser.docutils_ import Parser

from tui import cli
from tui.command_line.arguments import commands_of
from tui.manual import SUBJECTS, page, title

SETTINGS = {"output_encoding": "unicode", "report_level": 5, "myst_enable_extensions": ["deflist"]}
TABLE = re.compile(r"^\|[^|\n]+\|[^|\n]+\|\n\|---\|---\|\n((?:\|.*\|\n)+)", re.M)  # of two columns
ROW = re.compile(r"^\| (.*?) \| (.*) \|\n", re.M)
CODE = re.compile(r"(?:^    .*\n)+", re.M)
EXAMPLE = re.compile(r" *(gdrtop.*?) {2,}(\S.*)")
LAST = ("Exit status", "Environment", "Files")  # in the order of man-pages(7)
DESCRIPTION = """\
With GPUDirect RDMA a NIC reads and writes GPU memory directly. Without it NCCL copies through host memory,
and multi-node training can be several times slower. gdrtop shows whether it works on this node, whether jobs
use it right now, and if not, why, and which command fixes it. Without a command, gdrtop opens the dashboard.
"""
COMMON = "Most commands also take the options above that choose the node."
SEE_ALSO = "ibstat(8), ibv_devinfo(1), lspci(8), modprobe(8), modules-load.d(5), nvidia-smi(1), rdma(8)"


def examples(text: str) -> list[tuple[str, str]]:
    """Commands and what they do, if each line has both; a line that is indented deeper continues one."""
    rows = [EXAMPLE.fullmatch(line) for line in re.sub(r"\n {8,}", "  ", text).splitlines()]
    return [(row[1], " ".join(row[2].split())) for row in rows if row] if all(rows) else []


def explained(code: re.Match[str]) -> str:
    """Examples as a list, in which they fit into 80 columns; other code as it is, between fences.

    Only by its indent, it would be text of the item before it if it follows a list.
    """
    listed_ = "".join(f"`{command}`\n: {text}\n\n" for command, text in examples(code[0]))
    return listed_ or f"```\n{textwrap.dedent(code[0])}```\n"


def roff(markdown: str) -> tuple[str, str]:
    """Return docutils' macros, and the text without its title; tables of two columns become lists."""
    lists = TABLE.sub(lambda table: ROW.sub(r"\1\n: \2\n\n", table[1]), f"{markdown}\n")
    whole = publish_string(
        CODE.sub(explained, lists), parser=Parser(), writer="manpage", settings_overrides=SETTINGS
    )
    macros, _, rest = whole.partition(".TH ")
    _, _, body = rest.partition(".SH Name\n")
    return macros, body.partition("\n")[2].partition('.\\" End of generated')[0].strip() + "\n"


def section(name: str, body: str) -> str:
    return f'.SH "{name.upper()}"\n{body}'


def own_sections(markdown: str) -> tuple[str, dict[str, str]]:
    """The page without the sections that every man page has, and these by name."""
    text, *sections = re.split(r"^## ", markdown, flags=re.M)
    named = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    # Of the exit statuses, those of all commands are in the page about JSON.
    names = [name for name in LAST if name != "Exit status" or text.startswith("# JSON")]
    rest = [f"## {name}\n{body}" for name, body in named.items() if name not in names]
    return "".join([text, *rest]), {name: named[name] for name in names if name in named}


def plain(text: str) -> str:
    """A text of the parser as roff: no line of it is a request, and "-" can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))


def verbatim(text: str) -> str:
    return f".nf\n{plain(text.strip())}\n.fi\n" if text.strip() else ""


def listed(name: str, text: str) -> str:
    return f".TP\n.B {plain(name)}\n{plain(text)}\n"


def usage(parser: argparse.ArgumentParser, name: str) -> str:
    """The usage; lines break between options, not inside of one."""
    text = " ".join(parser.format_usage().split()).removeprefix(f"usage: {name} ")
    pieces = re.findall(r"\[(?:[^][]|\[[^][]*\])*\]|\S+", text)
    return f".HP\n.B {plain(name)}\n" + "".join(
        f"\\%{plain(piece)}\n".replace(" ", "\\ ") for piece in pieces
    )


def options(parser: argparse.ArgumentParser, common: Collection[str] = ()) -> str:
    """The arguments and options, each with its help, but for the `common` ones."""
    parts = []
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help and action.help not in common]
        if actions and group.title not in ("options", "positional arguments"):
            parts.append(f".PP\n{plain(str(group.title).capitalize())}:\n")
        for action in actions:
            argument = formatter._format_args(action, action.dest.upper())
            names = ", ".join(action.option_strings)
            parts.append(listed(f"{names} {argument}".strip(), formatter._expand_help(action)))
    return "".join(parts)


def man_page() -> str:
    parser = cli.command_parser()
    commands = commands_of(parser)
    common = {argparse.SUPPRESS, *(action.help for action in parser._actions if action.help)}
    summaries = "".join(listed(f"gdrtop {name}", text) for name, (text, _) in commands.items())
    prose, macros = "", ""
    last = dict.fromkeys(LAST, "")
    for subject in SUBJECTS:
        text, own = own_sections(page(subject))
        if text.strip() != f"# {title(subject)}":
            macros, body = roff(text)
            prose += section(title(subject), body.replace("\n.SH ", "\n.SS "))
        for name, markdown in own.items():
            macros, body = roff(f"# {name}\n\n{markdown}")
            last[name] += body
    of_commands = "".join(
        f'.SS "gdrtop {plain(name)}"\n{plain(command.description or "")}\n'
        f"{usage(command, f'gdrtop {name}')}{options(command, common)}{'.PP' if command.epilog else ''}\n"
        f"{verbatim(command.epilog or '')}"
        for name, (_, command) in commands.items()
    )
    shown = (parser.epilog or "").removeprefix("examples:\n").partition("\n\n")[0]
    return "".join(
        (
            macros,
            '.TH GDRTOP 1 "" gdrtop "gdrtop manual"\n.ad l\n',
            section("Name", "gdrtop \\- htop for GPUDirect RDMA\n"),
            section("Synopsis", ".B gdrtop\n[OPTION ...] [COMMAND] [ARGUMENT ...]\n"),
            section("Description", plain(DESCRIPTION)),
            section("Commands", summaries),
            section("Options", options(parser)),
            prose,
            section("Options of each command", f"{COMMON}\n{of_commands}"),
            *(section(name, body) for name, body in last.items()),
            section("Examples", "".join(listed(*example) for example in examples(shown))),
            section("See also", f"{plain(SEE_ALSO)}\n"),
        )
    )
