"""PCIe read requests of NICs: their size, and how many are in flight."""

from __future__ import annotations

from collections.abc import Callable

from probes.base.plan import Plan, instruction
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.pcie.device_control import SPEC, each_nic
from probes.facts.pci.config_space import PciExpress
from probes.facts.rdma.devices import RdmaFacts
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.plans.device_control import USUAL_READ_BYTES, raising
from probes.queries.finding import Area, Evidence, Outcome, Severity, passed
from probes.queries.pcie_paths import Tally, need_read, nic_registers, unknown_devices
from probes.snapshot.examination import Examination

AREA = Area("pcie", requires=(unknown_devices,))


@AREA.check(
    "pcie-devctl-read-request",
    Severity.NOTE,
    "MaxReadReq (MRRS) of a NIC is below 4096 bytes",
    SPEC + "; "
    "https://enterprise-support.nvidia.com/s/article/understanding-pcie-configuration-for-maximum-performance",
    ok="MaxReadReq (MRRS) of the NICs is 4096 bytes",
    impact="The send rate can drop when the PCIe link is nearly full. Measure before and after a change.",
)
def pcie_devctl_read_request(examination: Examination) -> Outcome:
    """Check Max_Read_Request_Size of each NIC."""

    def wrong(express: PciExpress) -> str | Unknown:
        size = express.max_read_request_bytes
        if isinstance(size, Unknown):
            return size
        return "" if size >= USUAL_READ_BYTES else f"DevCtl: MaxReadReq {size} bytes"

    return each_nic(
        examination,
        wrong,
        "The NIC reads outgoing data in small pieces.",
        "MaxReadReq 4096 bytes on all NICs",
        lambda bad: raising(
            examination, {bdf: known(nic.max_read_request_bytes, 0) for bdf, nic in bad.items()}
        ),
    )


@AREA.check(
    "pcie-devctl-read-request-differs",
    Severity.NOTE,
    "NICs of the same model have different MaxReadReq (MRRS)",
    SPEC,
    ok="NICs of the same model have the same MaxReadReq (MRRS)",
    impact="The slowest NIC sets a job's pace.",
)
def pcie_devctl_read_request_differs(examination: Examination) -> Outcome:
    """Compare Max_Read_Request_Size of NICs with the same board."""
    return _same_on_board(
        examination,
        lambda express: express.max_read_request_bytes,
        lambda size: f"MaxReadReq {size} bytes",
        "NICs of the same model are set differently.",
        "MaxReadReq is the same on NICs of the same model",
    )


@AREA.check(
    "pcie-devctl-ten-bit-tags-differ",
    Severity.NOTE,
    "10-bit tags are enabled on only some NICs of the same model",
    "PCI Express Base Specification, Device Control 2 Register, 10-Bit Tag Requester Enable",
    ok="10-bit tags are set the same on NICs of the same model",
    impact="Without 10-bit tags a NIC has at most 256 reads in flight. With PCIe Gen4 or later that is often "
    "too few over long paths.",
)
def pcie_devctl_ten_bit_tags_differ(examination: Examination) -> Outcome:
    """Compare 10-Bit Tag Requester Enable of NICs with the same board."""
    return _same_on_board(
        examination,
        lambda express: (
            False
            if isinstance(express.ten_bit_tags, Unknown) and express.ten_bit_tags.reason is Reason.NOT_THERE
            else express.ten_bit_tags
        ),
        lambda on: f"DevCtl2: 10BitTagReq{'+' if on else '-'}",
        "The firmware enables 10-bit tags per slot.",
        "10-bit tags are set the same on NICs of the same model",
    )


def _same_on_board(
    examination: Examination,
    fact_of: Callable[[PciExpress], Maybe[int]],
    words: Callable[[int], str],
    cause: str,
    good: str,
) -> Outcome:
    """Compare a fact among NICs of one board, and report those below the greatest value."""
    rdma = examination.node.rdma
    if not isinstance(rdma, Unknown) or rdma.reason is not Reason.NOT_THERE:
        rdma = need_read(rdma)
    devices = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    nics = nic_registers(examination)
    by_board: dict[str, dict[str, tuple[str, int]]] = {}
    tally = Tally()
    for device in devices:
        bdf = known(device.bdf, "")
        board = known(device.board_id, known(device.hca_type, ""))
        if bdf not in nics or not board:
            continue
        express = nics[bdf]
        fact = map_known(express, fact_of)
        if isinstance(fact, Unknown):
            tally.unknowns.append(fact)
        else:
            by_board.setdefault(board, {})[bdf] = (device.name, fact)
    if not tally.unknowns and all(len(equals) < 2 for equals in by_board.values()):
        return passed(Evidence("/sys/class/infiniband/*/board_id", "no two NICs of the same model"))
    for equals in by_board.values():
        values = [fact for _, fact in equals.values()]
        if len(set(values)) < 2:
            continue
        for bdf, (name, fact) in equals.items():
            if fact < max(values):
                text = f"{name}: {words(fact)}, others {words(max(values))}"
                tally.fault(Evidence(f"lspci -vvv -s {bdf}", text), bdf)
    plan = Plan(
        "Set NICs of the same model the same way",
        (instruction("In the BIOS, set the slots of these NICs like those of the others."),),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
    )
    return tally.outcome(cause, Evidence("lspci -vvv", good), plan)
