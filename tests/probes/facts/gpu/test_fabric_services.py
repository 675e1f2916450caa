"""NVLSM, ib_umad and IMEX on the node."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.fabric_services import NVLSM, count_nodes, probe
from probes.facts.pci.functions import PciFacts
from probes.host.local import LocalHost
from probes.simulation.host import SimulatedHost
from tests.trees import write

WITH_BRIDGE = PciFacts({}, {}, {"0000:05:00.0": "VPD has SMDL=SW_MNG"})
WITHOUT = PciFacts({}, {})


def test_a_board_with_a_bridge() -> None:
    facts = probe(SimulatedHost("hgx-b200"), WITH_BRIDGE)
    assert (facts.nvlsm_program, facts.nvlsm_runs, facts.umad_loaded) == (NVLSM, True, True)


def test_other_nodes_are_not_searched_for_nvlsm() -> None:
    facts = probe(SimulatedHost("hgx-h100"), WITHOUT)
    assert isinstance(facts.nvlsm_runs, Unknown)
    assert facts.nvlsm_runs.reason is Reason.NOT_THERE
    assert facts.umad_loaded is False


def test_hidden_processes_are_unknown_and_not_absent(tmp_path: Path) -> None:
    write(tmp_path, "/proc/77/comm", "bash\n")
    facts = probe(LocalHost(str(tmp_path)), WITH_BRIDGE)
    assert isinstance(facts.nvlsm_runs, Unknown)
    write(tmp_path, "/proc/1/comm", "systemd\n")
    assert probe(LocalHost(str(tmp_path)), WITH_BRIDGE).nvlsm_runs is False
    write(tmp_path, "/proc/78/comm", "nvlsm\n")
    assert probe(LocalHost(str(tmp_path)), WITH_BRIDGE).nvlsm_runs is True


def test_imex_channels_and_the_nodes_of_the_domain(tmp_path: Path) -> None:
    facts = probe(LocalHost(str(tmp_path)), WITHOUT)
    assert isinstance(facts.imex_channels, Unknown)
    assert isinstance(facts.imex_nodes, Unknown)
    for name in ("channel0", "channel2047", "other"):
        write(tmp_path, f"/dev/nvidia-caps-imex-channels/{name}", "")
    write(tmp_path, "/etc/nvidia-imex/nodes_config.cfg", "# the domain\n10.0.0.1\n\n10.0.0.2\n")
    facts = probe(LocalHost(str(tmp_path)), WITHOUT)
    assert (facts.imex_channels, facts.imex_nodes) == (2, 2)


@given(st.text())
def test_any_list_of_nodes_is_counted(text: str) -> None:
    assert 0 <= count_nodes(text) <= len(text.splitlines())
