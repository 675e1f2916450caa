"""Write the man page and the completions that packages contain, from the command line and the manual.

`make man` writes them to build/; the build hook (build_version.py) puts them into each wheel.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.man_page import man_page
from tui.cli import command_parser
from tui.commands.completion import script

# By their place below share/.
COMPLETIONS = {
    "bash-completion/completions/gdrtop": "bash",
    "zsh/site-functions/_gdrtop": "zsh",
    "fish/vendor_completions.d/gdrtop.fish": "fish",
}


def write(folder: Path) -> dict[str, Path]:
    """Write the files below a folder, and return them by their place below share/."""
    texts = {place: script(shell, command_parser()) for place, shell in COMPLETIONS.items()}
    texts["man/man1/gdrtop.1"] = man_page()
    written = {place: folder / place for place in texts}
    for place, file in written.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[place], encoding="utf-8")
    return written


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])).values():
        print(path)
