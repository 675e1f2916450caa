"""The settings of a bandwidth test: rows that fit the node and each other, and the request they make.

Independent of Textual.
"""

from __future__ import annotations

from probes.bandwidth.model.command import host_of, is_host
from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST
from probes.snapshot.examination import Examination
from tui.bandwidth import setting_options
from tui.bandwidth.setting_options import ALL_SIZES, QUEUE_PAIRS, SECONDS, Option
from widgets.bandwidth.series import SettingRow

_ONE_ENDED = (Mode.SERVER, Mode.CLIENT)  # gdrtop starts one end only


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
            size_bytes=size if isinstance(size, int) and size != ALL_SIZES else None,
            all_sizes=size == ALL_SIZES,
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
    def wants_peer(self) -> bool:
        """Return whether the name of the peer is missing."""
        return self.has_peer and not self.peer

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
            rows += ["seconds"] if self._value("size") != ALL_SIZES else []
            rows += ["queue pairs", "both"]
        return [*rows, "bind"]

    def _options(self, row: str) -> list[Option]:
        examination, mode = self._examination, self._values["setup"]
        is_collective, can_compare = self._tool in NCCL_TESTS, mode not in _ONE_ENDED
        match row:
            case "gpu":
                return setting_options.gpus(examination)
            case "nic" if is_collective:
                return setting_options.collective_nics(examination)
            case "nic" if "gpu" in self._row_names():
                return setting_options.nics(examination, self._value("gpu"))
            case "nic":
                return setting_options.host_memory_nics(examination)
            case "far nic":
                return setting_options.far_nics(examination, self._value("nic"), mode is Mode.LOOPBACK)
            case "test":
                return setting_options.tests(examination)
        memories = setting_options.memories(can_compare)
        return {
            "setup": setting_options.MODES,
            "memory": setting_options.COLLECTIVE_MEMORIES if is_collective else memories,
            "scope": setting_options.scopes(self._tool),
            "size": setting_options.sizes(self._is_latency),
            "seconds": setting_options.numbers(SECONDS, " s"),
            "queue pairs": setting_options.numbers(QUEUE_PAIRS),
            "both": setting_options.DIRECTIONS,
            "bind": setting_options.bindings(self._tool),
            "through": setting_options.TRANSPORTS,
        }.get(row, [])

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
