"""Writes a simulated node's tree to a directory, so that LocalHost can read it from there."""

from __future__ import annotations

from pathlib import Path

from probes.simulation import SimulatedHost


def write_tree(host: SimulatedHost, directory: Path) -> None:
    """All files as they are at this moment, links and empty directories with them."""
    for path in host.tree.directories:
        if path not in host.tree.links:
            (directory / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path in host.tree.files:
        content = host.read_bytes(path, 1 << 30)
        assert isinstance(content, bytes)
        (directory / path.lstrip("/")).write_bytes(content)
    for path, target in host.tree.links.items():
        (directory / path.lstrip("/")).symlink_to(target)
