"""The package database of a simulated node: dpkg's or rpm's, as its distribution has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.simulation.node.tree import Tree

_OF_DPKG = ("Ubuntu", "Debian")


def grow_packages(tree: Tree, packages: Mapping[str, tuple[str, str]]) -> None:
    """Adds what tells the packages of files; `packages`: file -> name and version."""

    def owner(path: str) -> tuple[str, str] | None:
        return packages.get(path) if tree.is_there(path) else None

    def dpkg(argv: Sequence[str], seconds: float) -> str:
        if "--show" in argv:
            return "".join(f"{name} {version}\n" for name, version in sorted({*packages.values()}))
        return "".join(f"{of[0]}: {path}\n" for path in argv[2:] if (of := owner(path)))

    def rpm(argv: Sequence[str], seconds: float) -> str:
        return "".join(
            f"{of[0]} {of[1]}\n" if (of := owner(path)) else f"file {path} is not owned by any package\n"
            for path in argv[4:]
        )

    if tree.description.distribution.startswith(_OF_DPKG):
        tree.add("/usr/bin/dpkg-query", b"\x7fELF")
        tree.commands.setdefault("dpkg-query", dpkg)
    else:
        tree.add("/usr/bin/rpm", b"\x7fELF")
        tree.commands.setdefault("rpm", rpm)
