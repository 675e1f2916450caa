"""PCIe errors as the kernel counts them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.pci.config_space import ErrorCounts, parse_counts, probe_aer
from probes.host.machine.local import LocalHost
from tests.support.trees import write

BDF = "0000:17:00.0"
COUNTS = "RxErr 12\nBadTLP 0\nBadDLLP 3\nRollover 0\nTOTAL_ERR_COR 15\n"


def test_errors_by_name_and_severity(tmp_path: Path) -> None:
    write(tmp_path, f"/sys/bus/pci/devices/{BDF}/aer_dev_correctable", COUNTS)
    write(tmp_path, f"/sys/bus/pci/devices/{BDF}/aer_dev_fatal", "Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0\n")
    found = probe_aer(LocalHost(str(tmp_path)), [BDF]).functions[BDF]
    assert found.correctable == ErrorCounts(15, {"RxErr": 12, "BadDLLP": 3})
    assert found.fatal == ErrorCounts(0, {})


def test_no_aer_is_not_no_errors(tmp_path: Path) -> None:
    counts = probe_aer(LocalHost(str(tmp_path)), [BDF]).functions[BDF].correctable
    assert isinstance(counts, Unknown)
    assert counts.reason is Reason.NOT_THERE


def test_only_bdfs_become_paths(tmp_path: Path) -> None:
    assert probe_aer(LocalHost(str(tmp_path)), ["../../x"]).functions == {}


@given(st.text())
def test_no_text_stops_the_parser(text: str) -> None:
    parse_counts(text)
    counts = parse_counts(f"{text}\nTOTAL_ERR_COR 1")
    assert isinstance(counts, Unknown) or all(name.isprintable() for name in counts.by_name)
