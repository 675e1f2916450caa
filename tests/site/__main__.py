"""Build the documentation site (make site), and check its links and its search."""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import unquote

from probes.checks.judgment import judge
from probes.live.job_examination import examine_with_jobs
from probes.messages.catalogue import catalogue
from probes.simulation.host import SimulatedHost
from tests.site.pages import ROOT, Shown, page_of_message, pages, shown_by
from widgets.base.lines import as_text
from widgets.doctor.findings import draw_evidence, draw_fix, folded_evidence

TOOLS = Path(os.environ.get("SITE_TOOLS", Path(sys.prefix) / "site" / "bin"))
"""Sphinx, in an environment of its own (the group "site")."""
_BUNDLED = ("sphinx", "furo", "sphinxcontrib_asciinema", "snowballstemmer")  # the site has scripts of theirs
_WIDTH = 1000  # no line is cut: a browser wraps them
_LINK = re.compile(r'(?:href|src)="([^"#?]+)')
_WORD = re.compile(r"\w+")
_MOST_SUFFIX = 8  # "ization", which the index leaves out of a word


def shown_on(name: str, ids: tuple[str, ...]) -> dict[str, Shown]:
    """Return what is printed of these findings on a simulated node."""
    examination = examine_with_jobs(SimulatedHost(name, clock=lambda: 1_790_000_000.0))
    found = {finding.id: finding for finding in judge(examination).findings}
    shown = {}
    for id_ in ids:
        pieces = folded_evidence(found[id_].evidence)
        evidence = [line for piece, more in pieces for line in draw_evidence(piece, more, _WIDTH)]
        fix = draw_fix(found[id_], _WIDTH)
        shown[id_] = Shown(found[id_].impact, found[id_].cause, as_text(evidence), as_text(fix))
    return shown


def all_shown() -> dict[str, Shown]:
    """Return what is printed of every finding that a simulated node shows at once."""
    by_node: dict[str, tuple[str, ...]] = {}
    for id_, fault in shown_by().items():
        if id_ in fault.finds:
            name = f"{fault.on}+{fault.name}"
            by_node[name] = (*by_node.get(name, ()), id_)
    with ProcessPoolExecutor() as workers:
        parts = list(workers.map(shown_on, by_node, by_node.values(), chunksize=8))
    return {id_: shown for part in parts for id_, shown in part.items()}


def write_sources(folder: Path, made: Mapping[str, str]) -> None:
    """Write the pages, the pictures and the recording, for Sphinx."""
    for name, text in made.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "screenshots", folder / "screenshots")


def broken_links(site: Path) -> Iterator[str]:
    """Yield each link to a file of the site that is not there."""
    known: dict[Path, bool] = {}
    for path in sorted(site.rglob("*.html")):
        for address in set(_LINK.findall(path.read_text(encoding="utf-8"))):
            target = unquote(html.unescape(address))
            if not re.match("[a-z]+:|//", target):
                to = Path(os.path.normpath(path.parent / target))
                if not known.setdefault(to, to.is_file() and to.is_relative_to(site)):
                    yield f"{path.relative_to(site)}: {address}"


def not_found(site: Path) -> Iterator[str]:
    """Yield each message that the search does not find by a line of it."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    named = {name: number for number, name in enumerate(index["docnames"])}
    terms: dict[int, set[str]] = {number: set() for number in named.values()}
    for each in ("terms", "titleterms"):
        for term, numbers in index[each].items():
            for number in numbers if isinstance(numbers, list) else [numbers]:
                terms[number].add(term)
    for message in catalogue().messages:
        words = {word.lower() for line in message.samples for word in _WORD.findall(line)}
        here = terms[named[f"{page_of_message(message)}index"]]
        if missing := {word for word in words if not any(_is_stem(term, word) for term in here)}:
            yield f"the search does not find {page_of_message(message)} by {sorted(missing)}"


def _is_stem(term: str, word: str) -> bool:
    """Return whether the index can have this term for a word; short words are not in it."""
    return "_" not in word or (word.startswith(term[:-1]) and len(word) - len(term) < _MOST_SUFFIX)


def build(out: Path) -> None:
    """Build the site into a folder, which is emptied first; end with what is wrong."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "source")
        write_sources(source, pages(all_shown()))
        argv = [TOOLS / "python", "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
        argv += ["-c", Path(__file__).parent, "-d", Path(work, "read"), source, out]
        if subprocess.run(argv).returncode:
            sys.exit("Sphinx found mistakes in the pages")
    shutil.rmtree(out / "_sources", ignore_errors=True)
    for name in _BUNDLED:
        for text in TOOLS.parent.glob(f"lib/python*/site-packages/{name}-*.dist-info/licenses/*"):
            shutil.copy(text, out / "_static" / f"{name}-{text.name}.txt")
    if wrong := [*broken_links(out), *not_found(out)]:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.site", description=__doc__)
    parser.add_argument("out", metavar="DIR", type=Path)
    build(parser.parse_args().out.absolute())
