"""Write probes/nccl/variables/parameters.txt from NCCL's tags and a copy of a newer release.

    python -m tests.probes.nccl.parameters_of_tags NCCL.git TORCHCOMMS.git

Both are git directories. A variable is read by NCCL_PARAM, by DEFINE_NCCL_PARAM (since 2.30), or by
ncclGetEnv and getenv, which have no default. 2.31.2 is read in meta-pytorch/torchcomms; Meta adds variables,
so of the new ones only those that gdrtop knows are kept. Tests read the table, and do not run this.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from probes.nccl.variables.catalogue import is_known

TABLE = Path(__file__).parents[3] / "probes/nccl/variables/parameters.txt"
HEAD = """\
# The variables that NCCL reads: NAME FIRST-LAST [VERSION=DEFAULT …]. LAST is the last version that names it.
# Sources: https://github.com/NVIDIA/nccl, all tags, src/: NCCL_PARAM, DEFINE_NCCL_PARAM, ncclGetEnv, getenv;
# 2.31.2: https://github.com/meta-pytorch/torchcomms, comms/ncclx/v2_31. Defaults are as the source has them.
# Written by tests/probes/nccl/parameters_of_tags.py; do not edit.
"""
_COPIES = (("2.31.2", "comms/ncclx/v2_31/src"),)
_TAG = re.compile(r"v(\d+\.\d+\.\d+)-\d+")
_LINE = r"NCCL_PARAM *\(|ncclGetEnv *\(|getenv *\("
_DEFAULT = r"((?:[^(),;]|\([^()]*\))+)"
_PARAM = re.compile(rf'\bNCCL_PARAM *\( *\w+ *, *"(\w+)" *, *{_DEFAULT}\)')
_DEFINED = re.compile(rf"\bDEFINE_NCCL_PARAM *\( *\w+ *, *[\w:]+ *, *NCCL_(\w+) *, *{_DEFAULT}[,)]")
_WORD = r'"(NCCL_)?[A-Z0-9_]{2,60}"|\bNCCL_[A-Z0-9_]{2,60}'
_READ = re.compile(r'\b(?:ncclGetEnv|getenv) *\( *"NCCL_(\w+)" *\)')


@dataclass(frozen=True)
class Release:
    """A version and where its source is."""

    version: str
    directory: str
    tree: str  # a tag or commit
    path: str = "src"
    is_copy: bool = False


def releases(directory: str, copies: str) -> list[Release]:
    """Return the releases, oldest first; of one version the last tag."""
    found: dict[tuple[int, ...], Release] = {}
    for tag in sorted(_git(directory, "tag").split()):
        if match := _TAG.fullmatch(tag):
            found[tuple(map(int, match[1].split(".")))] = Release(match[1], directory, tag)
    tags = [release for _, release in sorted(found.items())]
    return [*tags, *(Release(version, copies, "HEAD", path, True) for version, path in _COPIES)]


def variables(release: Release) -> Iterator[tuple[str, str]]:
    """Yield the variables that a release reads, with their defaults; "" for none."""
    # Two lines more: a formatter breaks long calls.
    found = _grep(release, "-hE", "-A2", _LINE).replace("--\n", ";\n")
    text = re.sub(r"\s+", " ", re.sub(r"//[^\n]*", "", found))
    for pattern in (_PARAM, _DEFINED, _READ):
        for match in pattern.finditer(text):
            default = match[2] if pattern is not _READ else ""
            yield match[1], default.replace(" ", "").strip('"')


def table(directory: str, copies: str) -> str:
    """Return the table."""
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    defaults: dict[str, list[tuple[str, str]]] = {}
    for release in releases(directory, copies):
        for name, default in dict(sorted(variables(release))).items():
            if name not in first and release.is_copy and not is_known(f"NCCL_{name}"):
                continue
            first.setdefault(name, release.version)
            known = defaults.setdefault(name, [])
            if default and (not known or known[-1][1] != default):
                known.append((release.version, default))
        named = {word.strip('"') for word in _grep(release, "-hoE", _WORD).split()}
        last.update((name, release.version) for name in first if named & {name, f"NCCL_{name}"})
    lines = [HEAD]
    for name, since in sorted(first.items()):
        changes = (f" {version}={default}" for version, default in defaults[name])
        lines.append(f"{name} {since}-{last[name]}{''.join(changes)}\n")
    return "".join(lines)


def _grep(release: Release, *words: str) -> str:
    return _git(release.directory, "grep", *words, release.tree, "--", release.path)


def _git(directory: str, *words: str) -> str:
    done = subprocess.run(["git", f"--git-dir={directory}", *words], capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace")


if __name__ == "__main__":
    TABLE.write_text(table(*sys.argv[1:]), encoding="utf-8")
