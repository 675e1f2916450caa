"""The table of nvidia-smi topo -m, read as plainly as possible, and the same of a topology."""

from __future__ import annotations

import re

from probes.base.unknown import Unknown
from probes.topology.paths import Topology


def matrix_in(text: str) -> dict[tuple[str, str], str]:
    """Return (row, column) -> word, of the rows that begin with GPU or NIC."""
    lines = text.splitlines()
    head = next(line for line in lines if re.match(r"\s+GPU0\s", line))
    columns = re.findall(r"(?:GPU|NIC)\d+", head)
    words = {}
    for line in lines:
        row = re.match(r"((?:GPU|NIC)\d+)\s+(.*)", line)
        if row:
            for column, word in zip(columns, row.group(2).split(), strict=False):
                words[row.group(1), column] = word
    return words


def words_of(topology: Topology) -> dict[tuple[str, str], str]:
    """Return what gdrtop says of each pair, with nvidia-smi's names."""
    names = {gpu.id: f"GPU{number}" for number, gpu in enumerate(topology.gpus)}
    names.update({nic.id: f"NIC{number}" for number, nic in enumerate(topology.nics)})
    words = {(name, name): "X" for name in names.values()}
    for (a, b), path in topology.paths.items():
        smi = "?" if isinstance(path.smi, Unknown) else path.smi.value
        words[names[a], names[b]] = f"NV{path.nvlinks}" if path.nvlinks else smi
    return words
