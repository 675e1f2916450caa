"""Versions of symbols on a simulated node: what modprobe(8) prints of files, and what the kernel compares."""

from __future__ import annotations

from dataclasses import dataclass, field

from probes.base.unknown import Maybe
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.symbol_versions import EXPORTED, NEEDED
from probes.host.answers import CommandOutput
from probes.simulation.node.model.tree import Tree

OFED_VERSIONS = {PEER_MEMORY_SYMBOL: 0x6E1AAA01, "ib_unregister_peer_memory_client": 0x6E1AAA02}
OTHER_VERSIONS = {**OFED_VERSIONS, PEER_MEMORY_SYMBOL: 0x2F90C4D7}  # of another OFED


@dataclass
class VersionTable:
    """modprobe(8): the versions of symbols in each module's file, by its path."""

    needed: dict[str, dict[str, int]] = field(default_factory=dict)
    exported: dict[str, dict[str, int]] = field(default_factory=dict)

    def __call__(self, argv: tuple[str, ...], seconds: float) -> Maybe[str | CommandOutput]:
        """Return the versions in one file, as --dump-modversions and --show-exports print them."""
        del seconds
        option, path = (*argv[1:3], "", "")[:2]
        files = {NEEDED: self.needed, EXPORTED: self.exported}.get(option, {})
        if path not in files:
            return CommandOutput(argv, 1, "", f"modprobe: FATAL: could not get symbols of {path}")
        return "".join(f"0x{version:08x}\t{symbol}\n" for symbol, version in files[path].items())


def version_table(tree: Tree) -> VersionTable:
    """Return the node's versions, for changes; a node without them gets an empty table."""
    table = tree.commands.setdefault("modprobe", VersionTable())
    assert isinstance(table, VersionTable)
    return table


def differing_symbol(tree: Tree, path: str) -> str:
    """Return the symbol of which a file needs another version than a loaded module exports; "": none."""
    needed = version_table(tree).needed.get(path, {})
    loaded = tree.symbol_versions
    return next((name for name, version in needed.items() if loaded.get(name, version) != version), "")


def symvers(versions: dict[str, int]) -> str:
    """Return the text of OFED's Module.symvers, against which the driver is built."""
    line = "0x{:08x}\t{}\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
    return "".join(line.format(version, symbol) for symbol, version in versions.items())


def parse_symvers(text: str) -> dict[str, int]:
    """Return the versions in a Module.symvers: those that a driver has which is built now."""
    return {symbol: int(version, 16) for version, symbol, *_ in map(str.split, text.splitlines())}
