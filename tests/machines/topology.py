"""Paths between GPUs and NICs: nvidia-smi's tables and NCCL's own search against gdrtop's words."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from probes.base.unknown import Reason, Unknown
from probes.facts.node import probe_node
from probes.host.machine.local import LocalHost
from probes.nccl.log.facts import Place
from probes.read.reading import Section
from probes.read.topology import read_matrix
from probes.simulation.host import SimulatedHost
from probes.topology.paths import build
from tests.machines.compared import Compared, compare
from tests.support.nccl_xml import words_of_gdrtop, words_of_nccl
from tests.support.topo_matrix import matrix_in, words_of
from tests.support.trees import tree_from_lspci, write

_NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS")
_STORAGE = ("mlx5_4", "mlx5_9")  # of the simulated node


def nearest_nics(path: Path) -> Compared:
    """Compare how many GPUs have a NIC below their switch, as gdrtop reads it, with the table's words."""
    text = path.read_text()
    parsed = read_matrix(Section("nvidia-smi topo", tuple(text.splitlines()), Place("topo", 1)))
    cells = matrix_in(text)
    gpus = sorted({row for row, _ in cells if row.startswith("GPU")})
    nics = sorted({column for _, column in cells if column.startswith("NIC")})
    nvlinks = {word for (a, b), word in cells.items() if a in gpus and b in gpus and word.startswith("NV")}
    near = [gpu for gpu in gpus if {"PIX", "PXB"} & {cells[gpu, nic] for nic in nics}]
    shown = parsed.shows
    if any(word == "OK" for word in cells.values()):
        pairs = len(gpus) * (len(gpus) - 1) // 2
        truth = {"peers": f"All {pairs} pairs"}
        return compare(
            truth, {"peers": f"All {pairs} pairs" if shown.startswith(f"All {pairs} pairs") else shown}
        )
    if not nics:
        wanted = f"connects all {len(gpus)} GPUs ({nvlinks.pop()})" if nvlinks else "connects none"
        return compare({"NVLink": wanted}, {"NVLink": wanted if wanted in shown else shown})
    match = re.match(r"(\d+) of \d+ GPUs? ha", shown)
    number = int(match[1]) if match else len(near) if shown.startswith("The GPU has a NIC") else 0
    best = {gpu: min((cells[gpu, nic] for nic in nics), key=_NEAREST.index) for gpu in gpus}
    note = next(each.cause for each in parsed.statements if each.id == "nearest-nics")
    words = set(re.findall(r"\((PIX|PXB|PHB|NODE|SYS)\)", note))
    return compare(
        {"GPUs with a near NIC": len(near), "words": set(best.values())},
        {"GPUs with a near NIC": number, "words": words},
    )


def tree_and_table(text: Path, table: Path) -> Compared:
    """Compare the words of every pair in the tree that lspci shows with nvidia-smi's."""
    with tempfile.TemporaryDirectory() as folder:
        lspci = text.read_text(errors="replace")
        tree_from_lspci(lspci, Path(folder))
        for number, cpus in re.findall(r"^node (\d+) cpus: ([\d ]+)$", lspci, re.M):  # of numactl
            write(
                Path(folder), f"/sys/devices/system/node/node{number}/cpulist", f"{cpus.replace(' ', ',')}\n"
            )
        topology = build(probe_node(LocalHost(folder)))
    unknown = Unknown(Reason.NOT_THERE, "numa_node")
    ours = {pair: unknown if word == "?" else word for pair, word in words_of(topology).items()}
    return compare(matrix_in(table.read_text()), ours)


def simulated_and_table(table: Path) -> Compared:
    """Compare the words of the simulated hgx-h100, without its storage NICs, with a real machine's."""
    topology = build(probe_node(SimulatedHost("hgx-h100")))
    compute = [nic for nic in topology.nics if nic.id not in _STORAGE]
    names = {gpu.id: gpu.label for gpu in topology.gpus}
    names |= {nic.id: f"NIC{number}" for number, nic in enumerate(compute)}
    words = {
        (names[a], names[b]): path for (a, b), path in topology.paths.items() if a in names and b in names
    }
    truth = {pair: word for pair, word in matrix_in(table.read_text()).items() if word != "X"}
    return compare(
        truth,
        {
            pair: f"NV{path.nvlinks}" if path.nvlinks else getattr(path.smi, "value", "unknown")
            for pair, path in words.items()
        },
    )


def nccl_search(path: Path) -> Compared:
    """Compare the words of every pair with those of NCCL's search, as tests/support/nccl_xml.py has it."""
    text = path.read_text().strip()
    with tempfile.TemporaryDirectory() as folder:
        return compare(words_of_nccl(text), words_of_gdrtop(text, Path(folder)))


def nccl_paths(xml: Path, log: Path) -> Compared:
    """Compare the words of every pair in NCCL's topology with those that NCCL itself wrote to its log.

    Rows of GPUs have PXN, which is no path over PCIe: their NICs are taken from the rows of NICs.
    """
    lines = log.read_text(errors="replace").splitlines()
    bus: dict[str, str] = {}  # NET/0-5 -> its NIC's bus ID
    nic = ""
    truth: dict[object, object] = {}
    for line in lines:
        if found := re.search(r"- NIC/0-([0-9a-f]+)", line):
            nic = _bdf(found[1])
        elif found := re.search(r"- (NET/0-\d+) \(", line):
            bus[found[1]] = nic
        elif row := re.search(r"INFO ((?:GPU|NET)/0-[0-9a-f]+) :(.*)", line):
            for name, word in re.findall(r"((?:GPU|NET)/0-[0-9a-f]+) \(\d+/[\d.]+/([A-Z0-9]+)\)", row[2]):
                ends = [bus.get(each) or _bdf(each[6:]) for each in (row[1], name)]
                if word != "LOC" and not (row[1].startswith("GPU") and name.startswith("NET")):
                    truth[tuple(ends)] = word
                    truth[tuple(reversed(ends))] = word
    with tempfile.TemporaryDirectory() as folder:
        words = words_of_gdrtop(xml.read_text().strip(), Path(folder))
    ends_of_log = {end for pair in truth for end in pair}  # type: ignore[attr-defined]
    return compare(truth, {pair: word for pair, word in words.items() if set(pair) <= ends_of_log})


def _bdf(number: str) -> str:
    """Return the address of NCCL's number: domain, bus, device and function without separators."""
    value = int(number, 16)
    return f"{value >> 20:04x}:{value >> 12 & 255:02x}:{value >> 4 & 31:02x}.{value & 7:x}"
