"""`gdrtop completion SHELL`: print what completes gdrtop's commands and options in a shell."""

from __future__ import annotations

import argparse
from typing import TextIO

SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """\
to use it:
  bash  gdrtop completion bash > ~/.local/share/bash-completion/completions/gdrtop
  zsh   gdrtop completion zsh > DIR/_gdrtop, where DIR is in $fpath
  fish  gdrtop completion fish > ~/.config/fish/completions/gdrtop.fish
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the script of a shell."""
    from tui.commands.completion.script import script

    out.write(script(options.shell, options.parser))
    return 0
