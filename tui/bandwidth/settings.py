"""The settings of a bandwidth test: the values that fit the node and each other, and the request they make.

Independent of Textual.
"""

from __future__ import annotations

from probes.bandwidth.model.command import host_of, is_host
from probes.bandwidth.model.request import DEFAULT_BYTES, MemoryPath, Mode, Request, Scope
from probes.bandwidth.planning.inventory import inventory
from probes.bandwidth.planning.node_settings import active_port, nearest_nic
from probes.base.frozen import frozen
from probes.base.text import binary_size
from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST, PROGRAMS
from probes.snapshot.examination import Examination
from widgets.bandwidth.series import SettingRow
from widgets.base.figures import gbps
from widgets.node.matrix import BEST_MARK, smi_word

_ONE_ENDED = (Mode.SERVER, Mode.CLIENT)  # gdrtop starts one end only
_ALL_SIZES = 0
_SIZES = (DEFAULT_BYTES, 4 << 20, 8 << 20, 2, 64, 4096, 64 << 10)
_LATENCY_SIZES = (2, 64, 1024, 4096, 64 << 10)


@frozen
class Option:
    """A value of a setting, its text, and a short note beside it."""

    value: object
    text: str
    note: str = ""
    is_possible: bool = True


_MODES = [
    Option(Mode.LOOPBACK, "loopback: both ends on this node"),
    Option(Mode.SERVER, "server: wait for a peer"),
    Option(Mode.CLIENT, "client: connect to a server on the peer"),
    Option(Mode.BOTH_ENDS, "both ends: start the peer over SSH"),
]
_MEMORIES = [
    Option(MemoryPath.BEST, "GPU memory, best path on this node"),
    Option(MemoryPath.HOST, "host memory"),
    Option(MemoryPath.PEERMEM, "GPU memory via nvidia-peermem"),
    Option(MemoryPath.DMABUF, "GPU memory via DMA-BUF"),
    Option(MemoryPath.COMPARE, "compare host memory, nvidia-peermem, DMA-BUF"),
]
_COLLECTIVE_MEMORIES = [
    Option(MemoryPath.BEST, "GPU memory, NCCL's choice"),
    Option(MemoryPath.STAGED, "GPU memory staged, without GPUDirect RDMA"),
    Option(MemoryPath.COMPARE, "compare GPUDirect RDMA and staged"),
]
_PAIRS = [
    Option(Scope.PAIR, "this GPU and NIC"),
    Option(Scope.SWEEP, "every GPU with its best NIC"),
    Option(Scope.MATRIX, "every GPU with every NIC"),
]
_GPUS = [Option(Scope.PAIR, "this GPU"), Option(Scope.SWEEP, "every GPU, one after another")]
_SECONDS = [Option(n, f"{n} s") for n in dict.fromkeys((Request.duration_s, 10, 30, 60, 300, 3600, 5))]
_QUEUE_PAIRS = [Option(n, f"{n}") for n in dict.fromkeys((Request.queue_pairs, 1, 2, 4, 8, 16))]
_DIRECTIONS = [Option(False, "no"), Option(True, "yes (sum of both directions)")]
_TRANSPORTS = [Option(False, "NVLink or PCIe, as in a job"), Option(True, "NICs, no NVLink or shared memory")]


class BandwidthSettings:
    """The settings and their values."""

    def __init__(self) -> None:
        self._examination: Examination | None = None
        self.peer = ""
        self.selected = "test"
        self._values: dict[str, object] = {
            "test": Request.tool,
            "setup": Request.setup,
            "memory": Request.memory,
            "scope": Request.scope,
            "seconds": Request.duration_s,
            "queue pairs": Request.queue_pairs,
            "both": Request.is_bidirectional,
            "bind": Request.binds,
            "through": Request.over_network,
        }

    def set_examination(self, examination: Examination) -> None:
        """Set the facts of the node."""
        self._examination = examination
        self._keep_selection()

    def preset(self, gpu: str, nic: str) -> None:
        """Set the pair that is selected on the overview; "" leaves a setting as it is."""
        if gpu:
            self._values["gpu"] = gpu
            self._values.pop("nic", None)
        if nic:
            self._values["nic"] = nic

    def preset_request(self, request: Request) -> None:
        """Set test, memory and scope to those of a request on this node, and the rest to its default."""
        self._values = {**BandwidthSettings()._values, "test": request.tool, "setup": request.setup}
        self._values |= {"memory": request.memory, "scope": request.scope, "through": request.over_network}
        self._keep_selection()

    @property
    def request(self) -> Request:
        """Return the request that the settings make."""
        tool, scope = self._tool, self._value("scope")
        assert isinstance(scope, Scope)
        gpu, nic = self._text("gpu"), self._text("nic")
        is_pair, binds = scope is Scope.PAIR, self._value("bind") is True
        if tool in NCCL_TESTS:
            if self._value("through") is not True:
                return Request(tool=tool)
            path = self._value("memory")
            assert isinstance(path, MemoryPath)
            return Request(tool=tool, over_network=True, memory=path, nic=nic)
        if tool not in PERFTEST:
            return Request(tool=tool, scope=scope, gpu=gpu if is_pair else None, binds=binds)
        mode, memory, size = self._value("setup"), self._value("memory"), self._value("size")
        assert isinstance(mode, Mode)
        assert isinstance(memory, MemoryPath)
        return Request(
            tool=tool,
            setup=mode,
            scope=scope,
            memory=memory,
            gpu=gpu if is_pair and memory is not MemoryPath.HOST else None,
            nic=nic if is_pair else None,
            far_nic=self._text("far nic"),
            peer=self.peer if mode in (Mode.CLIENT, Mode.BOTH_ENDS) else "",
            size_bytes=size if isinstance(size, int) and size != _ALL_SIZES else None,
            all_sizes=size == _ALL_SIZES,
            duration_s=self._number("seconds"),
            queue_pairs=1 if self._is_latency else self._number("queue pairs"),
            is_bidirectional=not self._is_latency and self._value("both") is True,
            binds=binds,
        )

    # Changes

    def select(self, step: int) -> None:
        """Move the selection by `step` rows."""
        rows = self._row_names()
        index = rows.index(self.selected) + step if self.selected in rows else 0
        self.selected = rows[max(0, min(len(rows) - 1, index))]

    def change(self, step: int) -> bool:
        """Change the selected row to its next or previous value; return whether it has values."""
        values = [option.value for option in self._options(self.selected)]
        if not values:
            return False
        current = self._value(self.selected)
        index = values.index(current) + step if current in values else 0
        self._values[self.selected] = values[index % len(values)]
        if self.selected == "gpu":  # another GPU has another best NIC
            self._values.pop("nic", None)
        if self.selected in ("nic", "gpu"):
            self._values.pop("far nic", None)
        if self.selected == "test":
            self._values.pop("size", None)
        self._keep_selection()
        return True

    def set_peer(self, text: str) -> str:
        """Set the name of the peer; return an error message if it is not valid, else ""."""
        text = text.strip()
        uses_ssh = self._value("setup") is Mode.BOTH_ENDS
        if text and not (host_of(text) if uses_ssh else is_host(text)):
            return f"{text[:80]!r} is not a host name or address" + (" or user@host" if uses_ssh else "")
        self.peer = text
        return ""

    @property
    def has_peer(self) -> bool:
        """Return whether the test needs the name of a peer."""
        return "peer" in self._row_names()

    def _keep_selection(self) -> None:
        rows = self._row_names()
        if self.selected not in rows:
            self.selected = rows[0]

    # Rows

    @property
    def _tool(self) -> str:
        return str(self._values["test"])

    @property
    def _is_latency(self) -> bool:
        return self._tool.endswith("_lat")

    @property
    def _has_scopes(self) -> bool:
        """Return whether gdrtop can run one test after another; with one end only, it cannot."""
        return self._tool not in (*PERFTEST, *NCCL_TESTS) or self._values["setup"] not in _ONE_ENDED

    def _row_names(self) -> list[str]:
        tool = self._tool
        if tool in NCCL_TESTS:
            return ["test", "through", *(["nic", "memory"] if self._value("through") else [])]
        is_pair = self._value("scope") is Scope.PAIR
        if tool not in PERFTEST:
            return ["test", *(["gpu"] if is_pair else []), "scope", *(["bind"] if tool in GDRCOPY else [])]
        mode = self._value("setup")
        rows = ["test", "setup"]
        if mode in (Mode.CLIENT, Mode.BOTH_ENDS):
            rows.append("peer")
        if is_pair:
            rows += ["nic"] if self._value("memory") is MemoryPath.HOST else ["gpu", "nic"]
        if mode is not Mode.SERVER and (is_pair or mode is not Mode.LOOPBACK):
            rows.append("far nic")
        rows += ["memory", "scope", "size"] if self._has_scopes else ["memory", "size"]
        if not self._is_latency:
            rows += ["seconds"] if self._value("size") != _ALL_SIZES else []
            rows += ["queue pairs", "both"]
        return [*rows, "bind"]

    def _options(self, row: str) -> list[Option]:
        examination, mode, tool = self._examination, self._values["setup"], self._tool
        match row:
            case "test":
                return _tests(examination)
            case "setup":
                return _MODES
            case "gpu":
                return _gpus(examination)
            case "nic" if tool in NCCL_TESTS:
                return [Option(None, "all, NCCL's choice"), *_nics(examination)]
            case "nic" if "gpu" in self._row_names():
                return _nics(examination, self._value("gpu"))
            case "nic":  # for host memory: the first GPU's best one first, as without a choice
                cards = [] if examination is None else examination.topology.gpus
                best = nearest_nic(examination.topology, cards[0].id) if examination and cards else None
                return sorted(_nics(examination), key=lambda option: option.value != best)
            case "far nic":  # a peer's devices are unknown, so it has the names of this node
                same = Option(None, "the same port" if mode is Mode.LOOPBACK else "same name as here")
                near = self._value("nic")
                return [same, *(option for option in _nics(examination) if option.value != near)]
            case "memory" if tool in NCCL_TESTS:
                return _COLLECTIVE_MEMORIES
            case "memory":  # comparing takes several tests in a row
                can_compare = mode not in _ONE_ENDED
                return [each for each in _MEMORIES if can_compare or each.value is not MemoryPath.COMPARE]
            case "scope":
                return _PAIRS if tool in (*PERFTEST, *NCCL_TESTS) else _GPUS
            case "size":
                sizes = _LATENCY_SIZES if self._is_latency else _SIZES
                first, *rest = [Option(size, binary_size(size)) for size in sizes]
                return [first, Option(_ALL_SIZES, "all, 2 B to 8 MiB"), *rest]
            case "bind":
                device = "GPU" if tool in GDRCOPY else "NIC"
                return [Option(True, f"CPU and memory to the {device}'s NUMA node"), Option(False, "no")]
        others = {
            "seconds": _SECONDS,
            "queue pairs": _QUEUE_PAIRS,
            "both": _DIRECTIONS,
            "through": _TRANSPORTS,
        }
        return others.get(row, [])

    def _value(self, row: str) -> object:
        """Return the value of a row: the one that was set, else the first possible one.

        A value that other settings rule out does not count, but is not forgotten.
        """
        if row == "scope" and not self._has_scopes:
            return Scope.PAIR
        value = self._values.get(row)
        if row in self._values and row not in ("memory", "scope"):
            return value
        values = [option.value for option in self._options(row)]
        return value if value in values else values[0] if values else None

    def _text(self, row: str) -> str | None:
        value = self._value(row) if row in self._row_names() else None
        return value if isinstance(value, str) else None

    def _number(self, row: str) -> int:
        value = self._values[row]
        assert isinstance(value, int)
        return value

    def rows(self) -> list[SettingRow]:
        """Return the settings that apply to the selected test."""
        return [self._row(name) for name in self._row_names()]

    def _row(self, name: str) -> SettingRow:
        labels = {
            "gpu": "GPU",
            "nic": "NIC",
            "far nic": "Second NIC" if self._value("setup") is Mode.LOOPBACK else "Peer's NIC",
            "scope": "Pairs" if self._tool in PERFTEST else "GPUs",
            "size": "Message size",
            "seconds": "Duration",
            "both": "Bidirectional",
        }
        label = labels.get(name, name.capitalize())
        if name == "peer":
            note = "p: change" if self.peer else "Enter: type it"
            return SettingRow(name, label, self.peer or "none", note, bool(self.peer), True)
        value = self._value(name)
        option = next((option for option in self._options(name) if option.value == value), None)
        if option is None:
            return SettingRow(name, label, value if isinstance(value, str) else "none here", "", False)
        return SettingRow(name, label, option.text, option.note, option.is_possible)


def _tests(examination: Examination | None) -> list[Option]:
    """Return every test, with what its tool cannot do here."""
    found = {} if examination is None else {entry.tool: entry for entry in inventory(examination)}
    options = []
    for program in PROGRAMS:
        entry = found.get(program.name)
        note, is_possible = ("", True) if entry is None else (entry.missing, entry.can_run)
        options.append(Option(program.name, f"{program.name}: {program.label}", note, is_possible))
    return options


def _gpus(examination: Examination | None) -> list[Option]:
    """Return the GPUs by their PCI address."""
    facts = None if examination is None else examination.node.gpus
    if not isinstance(facts, GpuFacts):
        return []
    return [Option(gpu.bdf, f"GPU{gpu.index}", f"{gpu.name} · {gpu.bdf}") for gpu in facts.gpus]


def _nics(examination: Examination | None, gpu: object = None) -> list[Option]:
    """Return the RDMA devices: those nearest to the GPU first."""
    rdma = None if examination is None else examination.node.rdma
    if examination is None or not isinstance(rdma, RdmaFacts):
        return []
    topology = examination.topology
    devices = {device.name: device for device in rdma.devices if not isinstance(device.bdf, Unknown)}
    best = topology.best_nics.get(gpu, ()) if isinstance(gpu, str) else ()
    options = []
    for name in dict.fromkeys([*(name for name in best if name in devices), *devices]):
        port = active_port(devices[name])
        path = topology.paths.get((gpu, name)) if isinstance(gpu, str) else None
        word = "" if path is None else smi_word(path) + (BEST_MARK if best[:1] == (name,) else "")
        rate = "no active port" if port is None else gbps(port.rate_gbps)
        options.append(Option(name, f"{name} {word}".rstrip(), rate, port is not None))
    return options
