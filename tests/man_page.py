"""Write the man page gdrtop(1): the command line from its parser, the rest from the manual (make man)."""

import argparse
import re
from pathlib import Path
from typing import Any

from build_manpages.manpage import Manpage
from docutils.core import publish_string
from myst_parser.docutils_ import Parser

from tui import cli
from tui.manual import SUBJECTS, page, title

PATH = Path(__file__).parents[1] / "tui" / "manual" / "gdrtop.1"
SETTINGS = {"output_encoding": "unicode", "report_level": 5, "myst_enable_extensions": []}


def roff(markdown: str) -> tuple[str, str]:
    """The macros that docutils defines, and the text without its title."""
    whole = publish_string(markdown, parser=Parser(), writer="manpage", settings_overrides=SETTINGS)
    macros, _, rest = whole.partition(".TH ")
    _, _, body = rest.partition(".SH Name\n")
    return macros, body.partition("\n")[2].partition('.\\" End of generated')[0].strip() + "\n"


def own_sections(markdown: str) -> tuple[str, dict[str, str]]:
    """The page without the sections that every man page has, and these by name."""
    text, *sections = re.split(r"^## ", markdown, flags=re.M)
    named = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    # Of the exit statuses, those of all commands are in the page about JSON.
    names = ("Files", "Environment", *(["Exit status"] if text.startswith("# JSON") else []))
    rest = [f"## {name}\n{body}" for name, body in named.items() if name not in names]
    return "".join([text, *rest]), {name: named[name] for name in names if name in named}


def complete(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser with the options of all commands, which it adds when they are needed."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                fill: Any = getattr(command, "fill", None)
                if fill is not None:
                    command.fill = None
                    fill(command)
    return parser


def man_page() -> str:
    data = {"date": "", "project_name": "gdrtop", "manual_title": "gdrtop manual"}
    manual = Manpage(complete(cli._parser()), _data=data)
    manual.description = "htop for GPUDirect RDMA"
    macros = ""
    for subject in SUBJECTS:
        text, own = own_sections(page(subject))
        if text.strip() != f"# {title(subject)}":
            macros, body = roff(text)
            manual.add_section(title(subject), ">", body.replace("\n.SH ", "\n.SS "))
        for name, section in own.items():
            macros, body = roff(f"# {name}\n\n{section}")
            manual.add_section(name.upper(), ">", body)
    return macros + str(manual)


if __name__ == "__main__":
    PATH.write_text(man_page(), encoding="utf-8")
    print(PATH)
