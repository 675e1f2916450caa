"""Kernel messages of one kind as checks report them, what they mean, refusals of the GPU driver, Xids."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.base.evidence import Evidence, Severity, first_distinct, first_n
from probes.base.plan import Plan
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.facts.gpudirect import GdrPath, hardware_of
from probes.facts.kernel.log import KernelLogFacts, KernelMessage, LogKind
from probes.facts.pci.functions import PciKind
from probes.queries.finding import KERNEL_LOG, Outcome, Status, end_with, found, need, passed, unknown
from probes.snapshot.examination import Examination

if TYPE_CHECKING:
    from probes.messages.message import Meaning

_BOOT_SECONDS = 60.0
_DEVICE_OF = {
    LogKind.SXID: PciKind.NVSWITCH,
    LogKind.NIC_HEALTH: PciKind.NIC,
    LogKind.NIC_COMMAND: PciKind.NIC,
    LogKind.NIC_POWER: PciKind.NIC,
    LogKind.NIC_LINK: PciKind.NIC,
}
"""The device that messages of a kind are about; a GPU for all other kinds."""

Filter = Callable[[KernelMessage], bool]


def log_messages(
    examination: Examination, kind: LogKind, wanted: Filter = lambda _: True
) -> list[KernelMessage]:
    """Return the messages of a kind; without any, end the check."""
    if isinstance(examination.kernel_log, Unknown):
        end_with(_no_such_device(examination, kind))
    log = need(examination.kernel_log, KERNEL_LOG)
    messages = [message for message in log.messages if message.kind is kind]
    chosen = [message for message in messages if wanted(message)]
    if not chosen:
        # The latest messages of each Xid are kept, so an Xid that is missing was not logged.
        if kind is not LogKind.XID and log.counts.get(kind, 0) > len(messages):
            count = f"{log.counts[kind]} were logged, and only the latest are kept"
            end_with(unknown(f"needs older kernel messages: {count}"))
        end_with(passed(Evidence(log.source, f"no such message ({kind.value}){coverage(log)}")))
    return chosen


def _no_such_device(examination: Examination, kind: LogKind) -> Outcome | None:
    pci = examination.node.pci
    device = _DEVICE_OF.get(kind, PciKind.GPU)
    if isinstance(pci, Unknown) or any(function.kind is device for function in pci.functions.values()):
        return None
    return passed(Evidence("/sys/bus/pci/devices", f"no {device.value}"))


def coverage(log: KernelLogFacts) -> str:
    """Return which messages are missing from the log, as the end of a sentence; "" for none."""
    levels = " at level warn or above" if log.only_warnings else ""
    since = log.since_seconds
    if not isinstance(since, Unknown) and since > _BOOT_SECONDS:
        return f"{levels} since {since:.0f} s after boot (older messages are gone)"
    return levels


def messages_about(
    examination: Examination, kinds: Collection[LogKind], bdfs: Collection[str]
) -> tuple[Evidence, ...]:
    """Return the latest messages of these kinds about these PCI functions; none if the log is unknown."""
    log = examination.kernel_log
    if isinstance(log, Unknown):
        return ()
    return first_distinct(
        Evidence(log.source, message.text)
        for message in reversed(log.messages)
        if message.kind in kinds and message.bdf in bdfs
    )


def with_messages(examination: Examination, outcome: Outcome, *kinds: LogKind) -> Outcome:
    """Add the messages of these kinds about the devices of a finding to its evidence."""
    if outcome.status is not Status.FOUND:
        return outcome
    nics = {nic.id: known(nic.bdf, nic.id) for nic in examination.topology.nics}
    messages = messages_about(examination, kinds, {nics.get(name, name) for name in outcome.devices})
    return replace(outcome, evidence=(*outcome.evidence, *messages))


def switched_off(examination: Examination) -> frozenset[str]:
    """Return the functions whose newest event of a module is an error of heat or power: the port is off."""
    log = examination.kernel_log
    events = () if isinstance(log, Unknown) else log.messages
    newest = {each.bdf: each.kind for each in events if "Port module event" in each.text and each.bdf}
    return frozenset(bdf for bdf, kind in newest.items() if kind is LogKind.NIC_POWER)


def meaning_of(line: str) -> Meaning | None:
    """Return what a line of the kernel means, by the catalogue of messages; None if it is not in there."""
    from probes.messages.catalogue import KERNEL, catalogue, explain  # not before there is a line to explain

    said = catalogue(*KERNEL).find(line)
    return None if said is None else explain(said)


def explanation_of(meaning: Meaning | None) -> str:
    """Return the cause, and what to do; "" if neither is known."""
    return "" if meaning is None else " ".join(filter(None, (meaning.cause, meaning.fix)))


def bdfs_in(messages: list[KernelMessage]) -> tuple[str, ...]:
    """Return the PCI functions that the messages name."""
    return tuple(dict.fromkeys(message.bdf for message in messages if message.bdf))


def found_in_log(
    examination: Examination,
    messages: list[KernelMessage],
    cause: str,
    fix: Plan | None = None,
    severity: Severity | None = None,
) -> Outcome:
    """Report a cause with the messages as evidence, the latest first."""
    log = examination.kernel_log
    source = "dmesg" if isinstance(log, Unknown) else log.source
    bdfs = bdfs_in(messages)
    return found(
        f"{join_limited(bdfs)}: {cause}" if bdfs else cause,
        *first_n(Evidence(source, message.text) for message in reversed(messages)),
        fix=fix,
        severity=severity,
        devices=bdfs,
    )


P2P_REFUSALS = (
    *("p2p-topology-refused-old-importer", "p2p-topology-refused", "p2p-topology-refused-override"),
)
"""The findings that the GPU driver denies GPU memory to NICs: jobs then have no path."""
IMPORTER = ("importer unable to handle MMIO", "dynamic attachment with no P2P support")
"""A NIC driver attached without peer-to-peer support (nv-dmabuf.c): since 580.65.06, and before."""
NAMES_IMPORTER = (580, 65, 6)
"""Older drivers write the second line, and the NIC gets ENOMEM, as from dma_buf_map_attachment."""


def age_of(examination: Examination, message: KernelMessage, of_nics: bool) -> tuple[bool, str]:
    """Return whether the driver was loaded again after a message, and a sentence on both moments.

    `of_nics`: a new NIC driver ends it, too. Virtual functions start alone, so all NICs must have.
    """
    written, log = message.seconds, examination.kernel_log
    if isinstance(written, Unknown) or isinstance(log, Unknown):
        return False, "The log does not show when."
    starts = {"nvidia": log.started.get("nvidia", 0.0)}
    if of_nics:
        bdfs = [known(device.bdf, "") for device in hardware_of(examination.node.rdma)]
        starts["the NIC driver"] = min((log.started.get(bdf, 0.0) for bdf in bdfs), default=0.0)
    name = max(starts, key=starts.__getitem__)
    at = f"This was last logged {written:.0f} s after boot"
    if starts[name] > written:
        later = f"{name} was loaded again {starts[name]:.0f} s after boot, and has refused nothing since"
        return True, f"{at}; {later}."
    verb = "were" if of_nics else "was"
    return False, f"{at}, and {' and '.join(starts)} {verb} not loaded again since: it is still so."


def nic_drivers(examination: Examination) -> tuple[str, ...]:
    """Return the PCI drivers of the RDMA devices, each once."""
    devices = hardware_of(examination.node.rdma)
    return tuple(dict.fromkeys(known(device.driver, "a NIC driver") for device in devices))


def importer_refutes(examination: Examination) -> tuple[GdrPath, ...]:
    """Return the paths that no NIC has while the driver refuses IMPORTER.

    The message does not name the NIC driver: of several, others may work.
    """
    return (GdrPath.DMABUF,) if len(nic_drivers(examination)) == 1 else ()


def is_in_use(examination: Examination, paths: tuple[GdrPath, ...]) -> bool:
    """Return whether ranks use one of these paths now, so that not every attempt is refused."""
    return not examination.usability.used.isdisjoint(paths)


def is_dmabuf_refused(examination: Examination) -> bool:
    """Return whether the GPU driver refuses every NIC's DMA-BUF, by the log, and no rank has one.

    The finding p2p-topology-refused-old-importer says so, and why.
    """
    log, paths = examination.kernel_log, importer_refutes(examination)
    refused = () if isinstance(log, Unknown) else log.messages
    kinds = [each for each in refused if each.kind is LogKind.P2P_REFUSED]
    messages = [each for each in kinds if any(words in each.text for words in IMPORTER)]
    if not messages or not paths or is_in_use(examination, paths):
        return False
    return not age_of(examination, messages[-1], of_nics=True)[0]


# Groups of Xids that mean the same, by NVIDIA's Xid catalog.
#
# https://docs.nvidia.com/deploy/xid-errors/index.html

LOST = (79,)
GSP = (119, 120)
MEMORY = (48, 63, 64, 92, 94, 95, 140, 171, 172)  # ECC errors, remapped rows, retired pages
NVLINK = (74, 144, 145, 146, 147, 148, 149, 150)  # 144 and later on later GPUs
PROGRAM = (13, 31, 43, 45, 68)  # mostly a bug of the program
RECOVERY = 154  # "GPU recovery action changed": the reset or reboot that another Xid requires
