"""Settings in the Device Control registers of NICs, GPUs and ports; read requests of NICs."""

from __future__ import annotations

from collections.abc import Callable

from probes.base.evidence import Evidence
from probes.base.plan import Plan, Step, make_plan
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, false_if_absent, is_there, known, map_known
from probes.facts.pci.config_space import ASPM_STATES, PciExpress
from probes.facts.pci.functions import DEVICES
from probes.plans.boot import command_line_steps
from probes.plans.common import reboot_plan, reboot_step
from probes.plans.pcie import DRAIN, NOT_LASTING, USUAL_READ_BYTES, raising, set_bits
from probes.plans.ports import WRITE_ORDERING, firmware_steps
from probes.queries.finding import Area, Outcome, passed
from probes.queries.pcie_paths import (
    Tally,
    aspm_on_paths,
    express_of,
    functions_of,
    near_paths,
    need_read,
    nic_registers,
    unknown_devices,
)
from probes.snapshot.examination import Examination
from probes.topology.graph import BRIDGES

AREA = Area("pcie", __package__, requires=(unknown_devices,))

_ON = "enabled on all NICs"


def each_nic(
    examination: Examination,
    wrong: Callable[[PciExpress], str | Unknown],
    cause: str,
    good: str,
    fix: Callable[[dict[str, PciExpress]], Plan] | None = None,
) -> Outcome:
    """Check the registers of every NIC; `wrong` returns the fault, or "" if there is none."""
    named = examination.topology.labels
    bad: dict[str, PciExpress] = {}
    tally = Tally()
    nics = nic_registers(examination)
    for bdf, express in nics.items():
        fault = express if isinstance(express, Unknown) else wrong(express)
        if isinstance(fault, Unknown):
            tally.unknowns.append(fault)
        elif fault and not isinstance(express, Unknown):
            bad[bdf] = express
            tally.fault(Evidence(f"lspci -vvv -s {bdf}", f"{named.get(bdf, bdf)}: {fault}"), bdf)
    if not nics:
        return passed(Evidence(DEVICES, "no NIC whose settings this node controls"))
    plan = fix(bad) if fix is not None and bad else None
    return tally.outcome(cause, Evidence("lspci -vvv", good), plan)


@AREA.warning("pcie-devctl-relaxed-ordering", data_path=True)
def pcie_devctl_relaxed_ordering(examination: Examination) -> Outcome:
    """Check Enable Relaxed Ordering (RlxdOrd) in each NIC's Device Control."""

    def fix(bad: dict[str, PciExpress]) -> Plan:
        steps = [set_bits(bdf, f"Let {bdf} request relaxed ordering", 0x10, 0, 0x10) for bdf in bad]
        looks = firmware_steps(examination, bad, WRITE_ORDERING)
        return make_plan(
            "Enable relaxed ordering", *steps, NOT_LASTING, *looks, disturbs=DRAIN, note=_WHY_OFF
        )

    return each_nic(
        examination,
        lambda express: "" if express.relaxed_ordering else "DevCtl: RlxdOrd-",
        "The NIC must keep its writes in order. That matters on many CPUs, and most of all in virtual "
        "machines.",
        "RlxdOrd+: " + _ON,
        fix,
    )


_WHY_OFF = (
    "The kernel disables relaxed ordering below root ports known to mishandle it (drivers/pci/quirks.c)."
)


@AREA.warning("pcie-devctl-payload-differs", data_path=True)
def pcie_devctl_payload_differs(examination: Examination) -> Outcome:
    """Compare Max_Payload_Size of GPU, NIC and ports between them, which must accept the others' packets."""
    functions = functions_of(examination)
    bad: dict[str, Evidence] = {}
    unknowns: dict[str, Unknown] = {}
    paths = near_paths(examination)
    for path in paths:
        both = (path.a, examination.topology.nic_ends[path.b])
        if any(functions[bdf].physical_function is not None for bdf in both):
            continue
        sizes: dict[str, int] = {}
        for bdf in (both[0], *(hop.id for hop in path.hops if hop.kind in BRIDGES), both[1]):
            express = express_of(examination, bdf)
            size = map_known(express, lambda express: express.max_payload_bytes)
            if isinstance(size, Unknown):
                unknowns[bdf] = size
            else:
                sizes[bdf] = size
        sent = max((sizes[bdf] for bdf in both if bdf in sizes), default=0)
        for bdf, size in sizes.items():
            if size < sent:
                named = examination.topology.labels.get(bdf, bdf)
                text = f"{named}: DevCtl: MaxPayload {size} bytes, its peer sends {sent}"
                bad[bdf] = Evidence(f"lspci -vvv -s {bdf}", text)
    return Tally(list(bad.values()), list(bad), list(unknowns.values())).outcome(
        "The firmware set a smaller MaxPayload on part of the path, and switches never split packets between "
        "peers.",
        Evidence(
            "lspci -vvv", f"the same MaxPayload on {plural(len(paths), 'path')}" if paths else "no near pairs"
        ),
        reboot_plan(
            "Set one MaxPayload on the whole path",
            *command_line_steps(examination, "payload", "pci=pcie_bus_safe"),
            reboot_step("Reboot; the kernel then sets one MaxPayload"),
            note="Instead, you can set one MaxPayload for all slots in the BIOS, or choose the BIOS default.",
        ),
    )


@AREA.note("pcie-devctl-extended-tags")
def pcie_devctl_extended_tags(examination: Examination) -> Outcome:
    """Check Extended Tag Field Enable (ExtTag) in each NIC's Device Control."""

    def wrong(express: PciExpress) -> str | Unknown:
        # 10-bit tags make this bit meaningless.
        if express.extended_tags or known(express.ten_bit_tags, False):
            return ""
        return "DevCtl: ExtTag-, DevCtl2: 10BitTagReq-"

    return each_nic(
        examination,
        wrong,
        "The kernel disables extended tags for a whole PCIe tree if one device in it does not support them.",
        "ExtTag+: " + _ON,
        lambda bad: reboot_plan(
            "Find what disables extended tags",
            "Look for 'disabling Extended Tags' in the kernel log, and check the BIOS.",
        ),
    )


@AREA.note("pcie-aspm-on")
def pcie_aspm_on(examination: Examination) -> Outcome:
    """Check ASPM on the links of NICs and on those between GPUs and near NICs."""
    named, tally = examination.topology.labels, Tally()
    links = aspm_on_paths(examination)
    bad: dict[str, str] = {}
    for bdf, state in links.items():
        if isinstance(state, Unknown):
            if state.reason is not Reason.NOT_THERE:
                tally.unknowns.append(state)
        elif state != ASPM_STATES[0]:
            bad[bdf] = state
            is_closed = isinstance(express_of(examination, bdf), Unknown)
            source = f"{DEVICES}/{bdf}/link" if is_closed else f"lspci -vvv -s {bdf}"
            tally.fault(Evidence(source, f"{named.get(bdf, bdf)}: LnkCtl: ASPM {state} Enabled"), bdf)
    if not links:
        return passed(Evidence(DEVICES, "no NIC whose settings this node controls"))
    steps = [
        Step(
            f"Disable ASPM on the link of {bdf}",
            ("setpci", "-s", bdf, "CAP_EXP+10.w=0000:0003"),
            undo=("setpci", "-s", bdf, f"CAP_EXP+10.w={ASPM_STATES.index(state):04x}:0003"),
        )
        for bdf, state in bad.items()
    ]
    lasting = "To make this permanent, disable ASPM in the BIOS or boot with pcie_aspm.policy=performance."
    cause = "The BIOS or the kernel's policy lets idle links sleep."
    fix = make_plan("Disable ASPM on these links", *steps, lasting) if steps else None
    return tally.outcome(cause, Evidence("lspci -vvv", "ASPM Disabled on all links"), fix)


@AREA.note("pcie-devctl-read-request")
def pcie_devctl_read_request(examination: Examination) -> Outcome:
    """Check Max_Read_Request_Size of each NIC."""

    def wrong(express: PciExpress) -> str | Unknown:
        size = express.max_read_request_bytes
        if isinstance(size, Unknown):
            return size
        return "" if size >= USUAL_READ_BYTES else f"DevCtl: MaxReadReq {size} bytes"

    def fix(bad: dict[str, PciExpress]) -> Plan:
        return raising(examination, {bdf: known(nic.max_read_request_bytes, 0) for bdf, nic in bad.items()})

    cause = "The NIC reads outgoing data in small pieces."
    return each_nic(examination, wrong, cause, "MaxReadReq 4096 bytes on all NICs", fix)


@AREA.note("pcie-devctl-read-request-differs")
def pcie_devctl_read_request_differs(examination: Examination) -> Outcome:
    """Compare Max_Read_Request_Size of NICs with the same board."""
    return _same_on_board(
        examination,
        lambda express: express.max_read_request_bytes,
        lambda size: f"MaxReadReq {size} bytes",
        "NICs of the same model have different settings.",
        "MaxReadReq is the same on NICs of the same model",
    )


@AREA.note("pcie-devctl-ten-bit-tags-differ")
def pcie_devctl_ten_bit_tags_differ(examination: Examination) -> Outcome:
    """Compare 10-Bit Tag Requester Enable of NICs with the same board."""
    return _same_on_board(
        examination,
        lambda express: false_if_absent(express.ten_bit_tags),
        lambda on: f"DevCtl2: 10BitTagReq{'+' if on else '-'}",
        "The firmware enables 10-bit tags per slot.",
        "10-bit tags have the same setting on NICs of the same model",
    )


def _same_on_board(
    examination: Examination,
    fact_of: Callable[[PciExpress], Maybe[int]],
    words: Callable[[int], str],
    cause: str,
    good: str,
) -> Outcome:
    """Compare a fact among NICs of one board, and report those below the greatest value."""
    if is_there(examination.node.rdma) is not False:
        need_read(examination.node.rdma)
    nics = nic_registers(examination)
    by_board: dict[str, dict[str, tuple[str, int]]] = {}
    tally = Tally()
    for device in examination.topology.devices.values():
        bdf = known(device.bdf, "")
        board = known(device.board_id, known(device.hca_type, ""))
        if bdf not in nics or not board:
            continue
        fact = map_known(nics[bdf], fact_of)
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
    plan = reboot_plan(
        "Use the same setting on all NICs of a model",
        "In the BIOS, set the slots of these NICs like those of the others.",
    )
    return tally.outcome(cause, Evidence("lspci -vvv", good), plan)
