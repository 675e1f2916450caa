"""`gdrtop completion SHELL`: print what completes gdrtop's commands and options in a shell."""

from __future__ import annotations

import argparse
from importlib import resources
from typing import TextIO

FILES = {"bash": "gdrtop.bash", "zsh": "_gdrtop", "fish": "gdrtop.fish"}
"""The file of each shell; `make man` writes them from the command line's parser."""
_EXAMPLES = """\
to use it:
  bash  gdrtop completion bash > ~/.local/share/bash-completion/completions/gdrtop
  zsh   gdrtop completion zsh > DIR/_gdrtop, where DIR is in $fpath
  fish  gdrtop completion fish > ~/.config/fish/completions/gdrtop.fish
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", metavar="SHELL", choices=tuple(FILES), help=", ".join(FILES))
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the script of a shell."""
    out.write(resources.files(__package__).joinpath(FILES[options.shell]).read_text(encoding="utf-8"))
    return 0
