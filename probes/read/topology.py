"""Distances between GPUs and NICs, and peers: matrices of nvidia-smi topo, and NCCL's XML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from probes.checks.pcie.placement import GPUS_A_NIC, nearer_plan
from probes.messages.message import Proof, Weight
from probes.nccl.log.facts import Place
from probes.nccl.topology_file import GPU_CLASS, Element, bus_id, endpoints_of, file_tree, parse_system
from probes.read.findings import fix_text, statement
from probes.read.reading import Parsed, Section, Statement
from probes.topology.hops import BELOW_SWITCH, Smi
from probes.topology.nccl_paths import Nccl, pci_path

# The matrices of nvidia-smi topo: how far GPUs and NICs are apart, and which GPUs are peers.
#
# `topo -m` has the words of its legend, also in lines that a terminal wrapped and with blanks collapsed.
# Older drivers name the columns of NICs by their devices (mlx5_0). `topo -p2p` has states of pairs of GPUs.

MATRIX_SIGN = r"\s*GPU\d{1,3}\s+(?:GPU\d|NIC\d|[a-z]\w*\d\s|CPU Affinity)"
_HEADER = re.compile(MATRIX_SIGN)
_GPU = re.compile(r"GPU\d{1,3}")
_NVLINK = re.compile(r"NV(\d{1,3})")
_PEER_STATES = {
    "CNS": "the chipset does not support it",
    "GNS": "a GPU does not support it",
    "TNS": "the PCIe topology does not support it",
    "DR": "a driver setting disables it",
    "NS": "it is not supported",
    "U": "nvidia-smi does not know",
}
_CELL = re.compile(r"X|NV\d{1,3}|OK|N/A|C2C|SOC|" + "|".join((*(word.value for word in Smi), *_PEER_STATES)))
_LEGEND = re.compile(r"\s*(NIC\d{1,3}):\s*(\S{1,64})\s*$")
_WORDS = re.compile(
    r"\s*(?:X|SYS|NODE|PHB|PXB|PIX|NV#|OK|CNS|GNS|TNS|NS|U|DR|C2C)\s+=\s|\s*(?:NIC )?Legend:\s*$"
)
_SMI = {word.value: word for word in Smi}
_RANK = {word: rank for rank, word in enumerate(Smi)}
_TO_NCCL = {Smi.PHB: Nccl.PHB, Smi.NODE: Nccl.PHB, Smi.SYS: Nccl.SYS}
_MOST_COLUMNS = 256
_MOST_TABLES = 256


@frozen
class Matrix:
    """The cells of a table, by row and column."""

    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    legend: Mapping[str, str]  # NIC0 -> mlx5_0
    is_cut: bool = False  # columns are missing

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs, in order."""
        return tuple(name for name in self.names if _GPU.fullmatch(name))

    @property
    def nics(self) -> tuple[str, ...]:
        """The NICs, in order."""
        return tuple(name for name in self.names if not _GPU.fullmatch(name))

    def cell(self, a: str, b: str) -> str:
        """Return the word between two devices; "" if the text does not have it."""
        return self.cells.get((a, b)) or self.cells.get((b, a), "")

    def near(self, gpu: str) -> tuple[str, ...]:
        """Return the NICs that share a PCIe switch with a GPU."""
        return tuple(nic for nic in self.nics if _SMI.get(self.cell(gpu, nic)) in BELOW_SWITCH)

    def shown(self, name: str) -> str:
        """Return the name of a NIC's device, if the legend has it."""
        return self.legend.get(name, name)


def read_matrix(section: Section) -> Parsed:
    """Read nvidia-smi topo -m, or -p2p; one table after another, as of several nodes."""
    tables: list[tuple[int, list[str]]] = []
    has_rows = True
    for number, line in enumerate(section.lines):
        if has_rows and _HEADER.match(line) and not _is_row(line.split()):
            tables.append((number, []))
            has_rows = False
        has_rows = has_rows or _is_row(line.split())
        if tables:
            tables[-1][1].append(line)
    read = [
        _table(lines, replace(section, place=replace(section.place, line=section.place.line + number)))
        for number, lines in tables[:_MOST_TABLES]
    ]
    return Parsed(
        sum(parsed.lines for parsed in read),
        tuple(statement for parsed in read for statement in parsed.statements),
        shows=" ".join(dict.fromkeys(parsed.shows for parsed in read)),
    )


def _is_row(words: list[str]) -> bool:
    return len(words) > 1 and _CELL.fullmatch(words[1]) is not None


def _table(lines: Iterable[str], section: Section) -> Parsed:
    names: list[str] = []
    rows: dict[str, list[str]] = {}
    legend: dict[str, str] = {}
    row: list[str] | None = None
    read = 0
    for line in lines:
        words = line.split()
        if not words:
            row = None
            continue
        if rows and _WORDS.match(line):
            pass
        elif match := _LEGEND.match(line):
            legend[match[1]] = match[2]
            row = None
        elif _is_row(words) and (words[0] in names or _GPU.fullmatch(words[0])):
            row = rows.setdefault(words[0], [])
            row += words[1:]
        elif not rows and len(names) < _MOST_COLUMNS:
            names += words
        elif row is not None:  # wrapped by a terminal
            row += words
        else:
            continue
        read += 1
    has_all_columns = "CPU" in names  # after those of devices
    names = list(_columns(names))
    cells = {
        (name, column): word
        for name, words in rows.items()
        for column, word in zip(names, _leading_cells(words), strict=False)
    }
    if not _fits(names, cells, rows):
        return Parsed(
            shows="This nvidia-smi topo table is cut or its columns are shifted: it cannot be read."
        )
    more = [word for words in rows.values() for word in list(_leading_cells(words))[len(names) :]]
    is_cut = not has_all_columns or not _SMI.keys().isdisjoint(more)
    matrix = Matrix(tuple(names), cells, legend, is_cut)
    if any(word == "OK" or word in _PEER_STATES for word in cells.values()):
        return _peers(matrix, section, read)
    return distances(matrix, section.place, read)


def _columns(words: Iterable[str]) -> Iterable[str]:
    """Yield the devices of a header, which end where the columns about CPUs begin."""
    for word in words:
        if not word[-1:].isdigit() or not word[0].isalpha():
            return
        yield word


def _leading_cells(words: Iterable[str]) -> Iterable[str]:
    for word in words:
        if not _CELL.fullmatch(word):
            return
        yield word


def _fits(names: list[str], cells: Mapping[tuple[str, str], str], rows: Mapping[str, list[str]]) -> bool:
    """Return whether each row has X in its own column, and nowhere else."""
    return (
        bool(rows)
        and all((word == "X") == (row == column) for (row, column), word in cells.items())
        and all(name in names for name in rows)
    )


def distances(matrix: Matrix, place: Place, read: int) -> Parsed:
    """Say which NICs each GPU has near, and what that means; `read`: lines of the table."""
    statements = list(_nvlink(matrix, place))
    gpus, nics = matrix.gpus, matrix.nics
    if not nics:
        return Parsed(read, tuple(statements), shows=f"{_links_of(matrix)} The table lists no NIC.")
    nearest: dict[str, tuple[Smi, tuple[str, ...]]] = {}
    cut: list[str] = []
    for gpu in gpus:
        words = {nic: _SMI[word] for nic in nics if (word := matrix.cell(gpu, nic)) in _SMI}
        best = min(words.values(), key=_RANK.__getitem__, default=None)
        is_whole = len(words) == len(nics) and not matrix.is_cut
        if best is not None and (is_whole or best is Smi.PIX):
            nearest[gpu] = best, tuple(nic for nic, word in words.items() if word is best)
        else:
            cut.append(gpu)  # a nearer one may be in what is missing
    if not nearest:
        return Parsed(read, tuple(statements), shows="The table is cut: it does not show the nearest NICs.")
    near = {gpu: matrix.near(gpu) for gpu, (word, _) in nearest.items() if word in BELOW_SWITCH}
    statements += _far(matrix, nearest, near, place)
    if not cut:
        statements += _shared(matrix, near, place)
    statements += _notes(matrix, nearest, near, place, is_whole=not cut)
    distances = sorted({word for word, _ in nearest.values()}, key=_RANK.__getitem__)
    named = join_limited(word.value for word in distances if word in BELOW_SWITCH or not near)
    if near:
        shows = f"{len(near)} of {plural(len(nearest), 'GPU')} have a NIC below their PCIe switch ({named})."
        if len(near) == len(nearest) == 1:
            shows = f"The GPU has a NIC below its PCIe switch ({named})."
    else:
        shows = f"No GPU has a NIC below its PCIe switch: the nearest NICs are at {named}."
    if cut:
        shows += f" The table is cut: of {join_limited(cut)} it does not show the nearest NIC."
    return Parsed(read, tuple(statements), shows=shows)


def _far(
    matrix: Matrix,
    nearest: Mapping[str, tuple[Smi, tuple[str, ...]]],
    near: Mapping[str, object],
    place: Place,
) -> Iterable[Statement]:
    """Say which GPUs have no near NIC, as the checks of the node do."""
    for far in (Nccl.PHB, Nccl.SYS):
        found = {gpu: word for gpu, (word, _) in nearest.items() if _TO_NCCL.get(word) is far}
        if not found:
            continue
        words = join_limited(sorted({word.value for word in found.values()}))
        place_of_them = f"{join_limited(found)}: the nearest NIC is at {words}"
        if near:
            cause = f"{place_of_them}. Other GPUs have one below their PCIe switch."
        else:
            cause = (
                f"{place_of_them}. With C2C links to the CPU (Grace, Vera) this is how the machine is built;"
                " in a virtual machine, the table is not the host's."
            )
        helpers = {
            gpu: [other for other in near if _NVLINK.fullmatch(matrix.cell(gpu, other))] for gpu in found
        }
        if near and all(helpers.values()):
            cause += " NCCL can reach a near NIC over NVLink and another GPU of the same job (PXN)."
        name = "gpu-nic-cross-socket" if far is Nccl.SYS else "gpu-nic-through-cpu"
        if near and far is Nccl.PHB:
            name = "gpu-without-near-nic"
        weight = None if near else Weight.NOTE
        yield statement(name, place, cause=cause, fix=fix_text(nearer_plan(far)), weight=weight)


def _shared(matrix: Matrix, near: Mapping[str, tuple[str, ...]], place: Place) -> Iterable[Statement]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for gpu, nics in near.items():
        groups.setdefault(nics, []).append(gpu)
    for nics, gpus in groups.items():
        if len(gpus) > GPUS_A_NIC * len(nics):
            names = join_limited(map(matrix.shown, nics))
            yield statement("gpu-nic-shared", place, cause=f"{join_limited(gpus)} share {names}.")


def _notes(
    matrix: Matrix,
    nearest: Mapping[str, tuple[Smi, tuple[str, ...]]],
    near: Mapping[str, tuple[str, ...]],
    place: Place,
    is_whole: bool,
) -> Iterable[Statement]:
    groups: dict[tuple[Smi, tuple[str, ...]], list[str]] = {}
    for gpu, found in nearest.items():
        groups.setdefault(found, []).append(gpu)
    texts = (
        f"{join_limited(gpus)}: {join_limited(map(matrix.shown, nics))} ({word.value})"
        for (word, nics), gpus in groups.items()
    )
    yield statement("nearest-nics", place, nics="; ".join(texts))
    served = {nic for nics in near.values() for nic in nics}
    alone = [nic for nic in matrix.nics if nic not in served]
    if near and alone and is_whole:
        names, count = join_limited(map(matrix.shown, alone)), plural(len(alone), "NIC")
        verb, pronoun = ("is", "it") if len(alone) == 1 else ("are", "them")
        yield statement(
            "nic-near-no-gpu", place, count_of_nics=count, verb=verb, pronoun=pronoun, names=names
        )
    if any(nic.startswith("NIC") and nic not in matrix.legend for nic in matrix.nics):
        yield statement("topo-without-legend", place)


def _counts(matrix: Matrix) -> dict[tuple[str, str], int]:
    """Return the NVLinks of each pair of GPUs whose cell is known."""
    gpus = matrix.gpus
    counts = {}
    for place, a in enumerate(gpus):
        for b in gpus[place + 1 :]:
            if word := matrix.cell(a, b):
                match = _NVLINK.fullmatch(word)
                counts[a, b] = int(match[1]) if match else 0
    return counts


def _links_of(matrix: Matrix) -> str:
    counts = _counts(matrix)
    if len(matrix.gpus) < 2 or not counts:
        return "The table shows one GPU."
    some = [count for count in counts.values() if count]
    words = join_limited(f"NV{count}" for count in sorted(set(some), reverse=True))
    if len(some) == len(counts):
        return f"NVLink connects all {len(matrix.gpus)} GPUs ({words})."
    if some:
        return f"NVLink connects {len(some)} of {len(counts)} pairs of GPUs ({words})."
    return f"NVLink connects none of the {len(matrix.gpus)} GPUs."


def _nvlink(matrix: Matrix, place: Place) -> Iterable[Statement]:
    """Find GPUs with fewer NVLinks than all others have among each other.

    Only where the others are all alike: on boards without NVSwitch pairs differ by design.
    """
    counts = _counts(matrix)
    total = Counter(counts.values())
    by_gpu: dict[str, Counter[int]] = {}
    for pair, count in counts.items():
        for gpu in pair:
            by_gpu.setdefault(gpu, Counter())[count] += 1
    for gpu, own in by_gpu.items() if len(matrix.gpus) > 3 else ():
        others = [count for count, pairs in total.items() if pairs > own[count]]
        if len(own) == len(others) == 1 and (least := next(iter(own))) < (most := others[0]):
            has = "no NVLink to them" if not least else f"NV{least}"
            cause = f"{gpu} has {has}; the other GPUs have NV{most} among each other."
            yield statement("nvlink-down", place, cause=cause)


def _peers(matrix: Matrix, section: Section, read: int) -> Parsed:
    """Read the states of pairs of GPUs."""
    gpus = matrix.gpus
    pairs = [(a, b) for place, a in enumerate(gpus) for b in gpus[place + 1 :]]
    states = {pair: word for pair in pairs if (word := matrix.cell(*pair))}
    refused = {pair: word for pair, word in states.items() if word != "OK"}
    is_nvlink = re.search(r"-p2p\s+n", section.command) is not None
    what = "NVLink" if is_nvlink else "peer-to-peer access"
    if not refused:
        return Parsed(
            read, shows=f"All {len(states)} pairs of GPUs support {what}. It says nothing about NICs."
        )
    words = set(refused.values())
    why = "; ".join(f"{word}: {_PEER_STATES.get(word, 'unknown')}" for word in sorted(words))
    shown = join_limited(f"{a} and {b}" for a, b in refused)
    said = statement(
        "gpu-nvlink-refused" if is_nvlink else "gpu-peers-refused",
        section.place,
        pairs=plural(len(refused), "pair"),
        gpus=f"{shown} ({why})",
    )
    good = len(states) - len(refused)
    return Parsed(read, (said,), shows=f"{good} of {len(states)} pairs of GPUs support {what}.")


# NCCL's XML: the topology that it found or was given, and the graphs that it chose.

SYSTEM_SIGN = r"\s*<system version="
GRAPHS_SIGN = r"\s*<graphs version="
_GRAPH = re.compile(r"<graph ((?:\w{1,20}=\"[^\"]{0,40}\"\s*){1,20})")
_ATTRIBUTE = re.compile(r"(\w{1,20})=\"([^\"]{0,40})\"")
_GRAPHS = {"0": "ring", "1": "tree", "2": "collnet", "3": "NVLS", "4": "NVLS tree", "5": "collnet direct"}
_TO_SMI = {Nccl.PIX: "PIX", Nccl.PXB: "PXB", Nccl.PHB: "PHB", Nccl.SYS: "SYS"}
_MOST_PAIRS = 64  # GPUs, and NICs, that are compared


def read_system(section: Section) -> Parsed:
    """Read a topology: NCCL_TOPO_DUMP_FILE or a file for NCCL_TOPO_FILE."""
    text = "\n".join(section.lines)
    end = text.find("</system>")
    text = text[: end + len("</system>")] if end >= 0 else text
    read = sum(bool(line.strip()) for line in text.split("\n"))
    system = parse_system(text, section.place.file)
    if isinstance(system, Unknown):
        return Parsed(shows=f"This NCCL topology cannot be read: {system.detail}.")
    nets = [(element, net) for element in system.walk() for net in element.named("net")]
    has_gpus = any(True for element in system.walk() for _ in element.named("gpu"))
    matrix = _matrix(system, has_gpus)
    parsed = distances(matrix, section.place, read) if matrix.nics else Parsed(read)
    if not has_gpus:
        shows = f"A topology file, which NCCL takes instead of what it finds. {parsed.shows}".strip()
        return Parsed(read, parsed.statements, shows=shows)
    support = list(_support([net for _, net in nets], section))
    # Distances do not matter to NICs that cannot reach GPU memory anyway.
    is_out = any(statement.proves is Proof.NO_GDR for statement in support)
    statements = [*support, *(() if is_out else parsed.statements)]
    found = [net.get("name") for _, net in nets]
    shows = f"NCCL found {join_limited(found)}." if found else "NCCL found no NIC."
    return Parsed(read, tuple(statements), shows=f"{shows} {parsed.shows}".strip())


def _matrix(system: Element, has_gpus: bool) -> Matrix:
    """Return the words between GPUs and NICs by the places in the file, as NCCL has them."""
    seats = file_tree("", system).seats
    names: dict[str, str] = {}  # of a bus ID
    nets: dict[str, str] = {}
    for element in endpoints_of(system):
        bus = bus_id(element)
        if element.get("class").startswith(GPU_CLASS):
            devs = [gpu.get("dev") for gpu in element.named("gpu")]
            if devs and devs[0].isdecimal():
                names.setdefault(bus, f"GPU{devs[0][:3]}")
            elif not has_gpus:  # else the job does not use it
                names.setdefault(bus, f"GPU{len(names)}")
        else:
            devices = [net.get("name") for nic in element.named("nic") for net in nic.named("net")]
            nets.setdefault(bus, join_limited(filter(None, devices), 2) or bus)
    gpus = list(names.items())[:_MOST_PAIRS]
    nics = list(nets.items())[:_MOST_PAIRS]
    cells = {
        (gpu, nic): _TO_SMI[pci_path(seats[gpu_bus], seats[nic_bus])]
        for gpu_bus, gpu in gpus
        for nic_bus, nic in nics
        if gpu_bus in seats and nic_bus in seats
    }
    return Matrix((*(name for _, name in gpus), *(name for _, name in nics)), cells, {})


def _support(nets: list[Element], section: Section) -> Iterator[Statement]:
    """Say whether NCCL can register GPU memory with the NICs that it found (gdr, src/graph/topo.cc)."""
    without = [net.get("name") for net in nets if net.get("gdr") == "0"]
    if without:
        name = "topology-without-gdr" if len(without) == len(nets) else "topology-partly-without-gdr"
        count = plural(len(nets), "NIC")
        yield statement(name, section.place, nics=join_limited(without), all=count)


def read_graphs(section: Section) -> Parsed:
    """Read the graphs of NCCL_GRAPH_DUMP_FILE; typeinter is the distance between GPU and NIC."""
    shown: list[str] = []
    statements: list[Statement] = []
    has_net = any("<net " in line for line in section.lines)
    for line in section.lines:
        match = _GRAPH.search(line)
        if match is None:
            continue
        values = dict(_ATTRIBUTE.findall(match[1]))
        kind = _GRAPHS.get(values.get("id", ""), "graph")
        words = f"{kind} with {plural(_number(values, 'nchannels'), 'channel')}"
        words += f", {values.get('typeintra', '?')} between GPUs"
        if has_net:
            words += f", {values.get('typeinter', '?')} to the NICs"
        shown.append(words)
        if has_net and values.get("typeinter") in ("PHB", "SYS"):
            distance = values["typeinter"]
            statements.append(statement("graph-far-nics", section.place, kind=kind, distance=distance))
    shows = f"NCCL's graphs: {'; '.join(shown[:8])}." if shown else ""
    return Parsed(section.filled, tuple(statements), shows=shows)


def _number(values: dict[str, str], name: str) -> int:
    text = values.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 7 else 0
