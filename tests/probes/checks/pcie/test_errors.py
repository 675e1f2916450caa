"""PCIe errors, and devices that do not respond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.facts.pci.config_space import ConfigSpaceFacts, ErrorCounts, PcieErrorFacts
from probes.facts.pci.functions import PciKind
from probes.queries.finding import Status
from probes.snapshot.examination import Examination
from tests.probes.checks.pcie.nodes import ABSENT, DENIED, finding, first, healthy, said, spaces, with_spaces
from tests.support.changed_facts import with_log
from tests.support.doctor import findings_on


def with_counts(examination: Examination, correctable: int) -> PcieErrorFacts:
    facts = examination.pcie_errors
    assert isinstance(facts, PcieErrorFacts)
    bdf = first(examination, PciKind.GPU).bdf
    counts = ErrorCounts(correctable, {"BadTLP": correctable})
    return PcieErrorFacts({**facts.functions, bdf: replace(facts.functions[bdf], correctable=counts)})


def test_corrected_errors_weigh_more_where_they_rise() -> None:
    once = replace(healthy(), pcie_errors=with_counts(healthy(), 12))
    assert finding(once, "pcie-aer-correctable").severity is Severity.NOTE
    still = replace(once, earlier_pcie_errors=with_counts(healthy(), 12))
    assert finding(still, "pcie-aer-correctable").severity is Severity.NOTE
    rising = replace(once, earlier_pcie_errors=with_counts(healthy(), 5))
    result = finding(rising, "pcie-aer-correctable")
    assert result.severity is Severity.WARNING
    assert "+7" in said(result)


def uncounted() -> Examination:
    facts = healthy().pcie_errors
    assert isinstance(facts, PcieErrorFacts)
    without = {
        bdf: replace(function, correctable=ABSENT, nonfatal=ABSENT, fatal=ABSENT)
        for bdf, function in facts.functions.items()
    }
    return replace(healthy(), pcie_errors=PcieErrorFacts(without))


def test_missing_error_counters_are_not_zero() -> None:
    for name in ("pcie-aer-correctable", "pcie-aer-uncorrectable"):
        result = finding(uncounted(), name)
        assert result.status is Status.UNKNOWN
        assert "AER" in result.cause


def test_a_counted_fatal_error_is_reported_once() -> None:
    found = findings_on("hgx-h100+pcie-aer-uncorrectable")
    assert found["pcie-aer-uncorrectable"].status is Status.FOUND
    assert found["pcie-error-unreported"].status is Status.PASSED


def test_a_function_that_does_not_answer_is_seen_without_root() -> None:
    gone = Unknown(Reason.DRIVER_ERROR, "config", "all ones")
    denied: dict[str, Any] = dict.fromkeys(spaces(healthy()), DENIED)
    nic = first(healthy(), PciKind.NIC).bdf
    examination = replace(healthy(), config_space=ConfigSpaceFacts({**denied, nic: gone}))
    assert finding(examination, "pcie-function-gone").devices == (nic,)


def test_a_function_that_is_gone_is_critical_where_a_gpu_is_cut_off_by_it() -> None:
    gone = Unknown(Reason.DRIVER_ERROR, "config", "all ones")
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    near = [bdf for bdf in spaces(examination) if bdf.startswith(("0000:1a", "0000:1b"))]
    assert len(near) == 2
    for lost, severity in (
        ([gpu.bdf], Severity.CRITICAL),
        ([gpu.chain[0]], Severity.CRITICAL),
        (near, Severity.CRITICAL),
        (near[:1], Severity.WARNING),
    ):
        here = with_spaces(examination, dict.fromkeys(lost, gone))
        assert finding(here, "pcie-function-gone").severity is severity
    assert findings_on("hgx-h100+pcie-function-gone")["pcie-function-gone"].severity is Severity.WARNING


def test_without_counters_the_kernel_log_tells_of_errors() -> None:
    """Firmware that handles AER itself leaves the kernel without counts."""
    gpu = first(healthy(), PciKind.GPU)
    port = f"pcieport {gpu.chain[-2]}: AER: Multiple Uncorrected (Fatal) error received: {gpu.bdf}"
    for line, corrected in (
        (f"nvidia {gpu.bdf}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", True),
        (f"nvidia {gpu.bdf}: PCIe Bus Error: severity=Correctable, type=Data Link Layer", True),
        (f"nvidia {gpu.bdf}: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", False),
        (port, False),
    ):
        node = with_log(uncounted(), line)
        ids = {True: "pcie-aer-correctable", False: "pcie-aer-uncorrectable"}
        assert finding(node, ids[corrected]).status is Status.FOUND
        assert line in said(finding(node, ids[corrected]))
        assert finding(node, ids[not corrected]).status is Status.UNKNOWN


def test_a_device_that_is_gone_is_explained_by_the_log() -> None:
    nic = first(healthy(), PciKind.NIC).bdf
    line = f"mlx5_core {nic}: mlx5_health_check_fatal_sensors:365: PCI-sync, pci dead"
    gone = with_spaces(healthy(), {nic: Unknown(Reason.DRIVER_ERROR, "config", "all ones")})
    assert line in said(finding(with_log(gone, line), "pcie-function-gone"))
