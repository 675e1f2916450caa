"""The settings of a bandwidth test, as rows that fit the node and each other, and the wish that they are.

Knows nothing of Textual.
"""

from __future__ import annotations

from collections.abc import Callable

from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.bandwidth.tools.command import is_host
from probes.bandwidth.tools.ssh import host_of
from probes.facts.system.tool_names import GDRCOPY, NCCL_TESTS, PERFTEST
from probes.snapshot.examination import Examination
from tui.bandwidth import setting_options as setup_options
from tui.bandwidth.setting_options import ALL_SIZES, QUEUE_PAIRS, SECONDS, Option
from widgets.bandwidth.setup import SettingRow


class BandwidthSettings:
    """Rows with values; changes only by `take`, `preset` and the keys' methods."""

    def __init__(self) -> None:
        self._examination: Examination | None = None
        self.peer = ""
        self.selected = "test"
        self._values: dict[str, object] = {
            "test": PERFTEST[0],
            "setup": Mode.LOOPBACK,
            "memory": MemoryPath.BEST,
            "scope": Scope.PAIR,
            "seconds": SECONDS[0],
            "queue pairs": 1,
            "both": False,
            "bind": True,
            "through": False,
        }

    def take(self, examination: Examination) -> None:
        """Take over what the node is."""
        self._examination = examination
        self._keep_row()

    def preset(self, gpu: str, nic: str) -> None:
        """The pair of endpoints selected on the overview; "" for none."""
        if gpu:
            self._values["gpu"] = gpu
            self._values.pop("nic", None)
        if nic:
            self._values["nic"] = nic

    @property
    def request(self) -> Request:
        """The wish as it stands."""
        tool = self._tool
        scope = self._value("scope")
        assert isinstance(scope, Scope)
        one = scope is Scope.PAIR
        gpu, nic = self._word("gpu"), self._word("nic")
        if tool in NCCL_TESTS:
            through = self._value("through") is True
            return Request(tool=tool, over_network=through, nic=nic if through else None)
        if tool not in PERFTEST:
            return Request(tool=tool, scope=scope, gpu=gpu if one else None, binds=self._binds)
        setup, memory, size = self._value("setup"), self._value("memory"), self._value("size")
        assert isinstance(setup, Mode)
        assert isinstance(memory, MemoryPath)
        return Request(
            tool=tool,
            setup=setup,
            scope=scope,
            memory=memory,
            gpu=gpu if one and memory is not MemoryPath.HOST else None,
            nic=nic if one else None,
            far_nic=self._word("far nic"),
            peer="" if setup in (Mode.LOOPBACK, Mode.SERVER) else self.peer,
            size_bytes=size if isinstance(size, int) and size != ALL_SIZES else None,
            all_sizes=size == ALL_SIZES,
            duration_s=self._number("seconds"),
            queue_pairs=1 if self._is_latency else self._number("queue pairs"),
            is_bidirectional=not self._is_latency and self._value("both") is True,
            binds=self._binds,
        )

    # Changing it

    def select(self, step: int) -> None:
        """Select the row above or below."""
        rows = self._rows()
        at = rows.index(self.selected) + step if self.selected in rows else 0
        self.selected = rows[max(0, min(len(rows) - 1, at))]

    def change(self, step: int) -> bool:
        """Take the next value of the selected row, or the one before; whether there was one."""
        options = self._options(self.selected)
        if not options:
            return False
        values = [one.value for one in options]
        current = self._value(self.selected)
        at = values.index(current) + step if current in values else 0
        self._values[self.selected] = values[at % len(values)]
        if self.selected == "gpu":  # another GPU has another best NIC
            self._values.pop("nic", None)
        if self.selected in ("nic", "gpu"):
            self._values.pop("far nic", None)
        if self.selected == "test":
            self._values.pop("size", None)
        self._keep_row()
        return True

    def set_peer(self, text: str) -> str:
        """Take the peer's name; why not, where it is none."""
        text = text.strip()
        by_ssh = self._value("setup") is Mode.BOTH_ENDS
        if text and not (host_of(text) if by_ssh else is_host(text)):
            return f"{text[:80]!r} is not a host name or address" + (" or user@host" if by_ssh else "")
        self.peer = text
        return ""

    @property
    def wants_peer(self) -> bool:
        """Whether the setup has a peer that must be named, and none is."""
        return self.has_peer and not self.peer

    @property
    def has_peer(self) -> bool:
        """Whether the setup has a peer to be named."""
        return "peer" in self._rows()

    def _keep_row(self) -> None:
        rows = self._rows()
        if self.selected not in rows:
            self.selected = rows[0]

    # The rows

    @property
    def _tool(self) -> str:
        return str(self._values["test"])

    @property
    def _is_latency(self) -> bool:
        return self._tool.endswith("_lat")

    @property
    def _binds(self) -> bool:
        return self._value("bind") is True

    def _rows(self) -> list[str]:
        """The settings that have a meaning for the chosen test."""
        tool = self._tool
        if tool in NCCL_TESTS:
            return ["test", "through", *(["nic"] if self._value("through") else [])]
        is_one = self._value("scope") is Scope.PAIR
        if tool not in PERFTEST:
            return ["test", *(["gpu"] if is_one else []), "scope", *(["bind"] if tool in GDRCOPY else [])]
        setup = self._value("setup")
        is_host = self._value("memory") is MemoryPath.HOST
        rows = ["test", "setup"]
        if setup in (Mode.CLIENT, Mode.BOTH_ENDS):
            rows.append("peer")
        if is_one:
            rows.extend(["nic"] if is_host else ["gpu", "nic"])
        if setup is not Mode.SERVER and (is_one or setup is not Mode.LOOPBACK):
            rows.append("far nic")
        rows.extend(["memory", "scope"] if self._has_scopes else ["memory"])
        rows.append("size")
        if not self._is_latency:
            rows.extend(["seconds"] if self._value("size") != ALL_SIZES else [])
            rows.extend(["queue pairs", "both"])
        rows.append("bind")
        return rows

    def _options(self, row: str) -> list[Option]:
        gpu = self._value("gpu") if row == "nic" and "gpu" in self._rows() else None
        setup = self._values["setup"]
        make: dict[str, Callable[[], list[Option]]] = {
            "test": lambda: setup_options.tests(self._examination),
            "setup": setup_options.setups,
            "gpu": lambda: setup_options.gpus(self._examination),
            "nic": lambda: setup_options.nics(self._examination, gpu),
            "far nic": lambda: setup_options.far_nics(
                self._examination, self._value("nic"), setup is Mode.LOOPBACK
            ),
            "memory": lambda: setup_options.memories(setup),
            "scope": lambda: setup_options.scopes(self._tool),
            "size": lambda: setup_options.sizes(self._is_latency),
            "seconds": lambda: setup_options.numbers(SECONDS, " s"),
            "queue pairs": lambda: setup_options.numbers(QUEUE_PAIRS),
            "both": setup_options.ways,
            "bind": lambda: setup_options.binding(self._tool),
            "through": setup_options.through,
        }
        return make[row]() if row in make else []

    def _value(self, row: str) -> object:
        """The value of a row: the one chosen, else the first there is.

        One that the other settings have taken the meaning from does not count, but is not forgotten.
        """
        if row == "scope" and not self._has_scopes:
            return Scope.PAIR
        chosen = self._values.get(row)
        if row in self._values and row not in ("memory", "scope"):
            return chosen
        values = [one.value for one in self._options(row)]
        return chosen if chosen in values else values[0] if values else None

    @property
    def _has_scopes(self) -> bool:
        """One end alone cannot begin one test after another."""
        tool, setup = self._tool, self._values["setup"]
        return tool not in (*PERFTEST, *NCCL_TESTS) or setup in (Mode.LOOPBACK, Mode.BOTH_ENDS)

    def _word(self, row: str) -> str | None:
        value = self._value(row) if row in self._rows() else None
        return value if isinstance(value, str) else None

    def _number(self, row: str) -> int:
        value = self._value(row)
        assert isinstance(value, int)
        return value

    # Drawing

    def rows(self) -> list[SettingRow]:
        """Those that have a meaning for the chosen test."""
        return [self._setting(row) for row in self._rows()]

    def _setting(self, row: str) -> SettingRow:
        labels = {
            "gpu": "GPU",
            "nic": "NIC",
            "far nic": "Second NIC" if self._value("setup") is Mode.LOOPBACK else "Peer's NIC",
            "scope": "Pairs" if self._tool in PERFTEST else "GPUs",
            "size": "Message size",
            "seconds": "Duration",
            "both": "Both ways",
        }
        label = labels.get(row, row.capitalize())
        if row == "peer":
            note = "p: change" if self.peer else "Enter: type it"
            return SettingRow(row, label, self.peer or "none", note, bool(self.peer), True)
        options = self._options(row)
        value = self._value(row)
        option = next((one for one in options if one.value == value), None)
        if option is None:
            return SettingRow(row, label, str(value) if isinstance(value, str) else "none here", "", False)
        return SettingRow(row, label, option.text, option.note, option.is_possible)
