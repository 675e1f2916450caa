"""What the checks of the kernel log have in common."""

from __future__ import annotations

from collections.abc import Callable

from probes.base.plan import Plan
from probes.base.unknown import Unknown
from probes.facts.kernel.log import KernelLogFacts, KernelMessage, LogKind
from probes.facts.pci.functions import PciKind
from probes.queries.evidence_list import KERNEL_LOG, first_n, join_limited
from probes.queries.finding import Evidence, Outcome, Severity, found, needs, passed, unknown
from probes.snapshot.examination import Examination

_BOOT_SECONDS = 60.0
_SPEAKERS = {
    LogKind.SXID: PciKind.NVSWITCH,
    LogKind.NIC_HEALTH: PciKind.NIC,
    LogKind.NIC_COMMAND: PciKind.NIC,
    LogKind.NIC_POWER: PciKind.NIC,
    LogKind.NIC_LINK: PciKind.NIC,
}
"""Whose messages these are; all others are a GPU's."""


def log_messages(
    examination: Examination, kind: LogKind, wanted: Callable[[KernelMessage], bool] = lambda _: True
) -> Outcome | list[KernelMessage]:
    """The messages of a kind in the kernel log; else the outcome."""
    log = examination.kernel_log
    if isinstance(log, Unknown):
        return _no_such_device(examination, kind) or unknown(needs_log(log))
    chosen = [one for one in log.messages if one.kind is kind and wanted(one)]
    if chosen:
        return chosen
    # Of every Xid the latest are kept, so that one which is not there has not been.
    if kind is not LogKind.XID and log.counts.get(kind, 0) > sum(one.kind is kind for one in log.messages):
        return unknown(
            f"needs older kernel messages: {log.counts[kind]} were logged, and only the latest are kept"
        )
    return passed(Evidence(log.source, f"no such message ({kind.value}){_how_far(log)}"))


def _no_such_device(examination: Examination, kind: LogKind) -> Outcome | None:
    """Pass where the node has no device that such messages are about."""
    pci = examination.node.pci
    wanted = _SPEAKERS.get(kind, PciKind.GPU)
    if isinstance(pci, Unknown) or any(one.kind is wanted for one in pci.functions.values()):
        return None
    return passed(Evidence("/sys/bus/pci/devices", f"no {wanted.value} here"))


def _how_far(log: KernelLogFacts) -> str:
    reach = " of level warn or above" if log.only_warnings else ""
    since = log.since_seconds
    if not isinstance(since, Unknown) and since > _BOOT_SECONDS:
        reach += f" since {since:.0f} s after boot (older messages are gone)"
    return reach


def needs_log(log: Unknown) -> str:
    """What it takes to read the kernel log."""
    return needs(KERNEL_LOG, log)


def said(examination: Examination, messages: list[KernelMessage]) -> tuple[Evidence, ...]:
    """The messages as evidence, the latest first."""
    log = examination.kernel_log
    source = "dmesg" if isinstance(log, Unknown) else log.source
    return first_n(Evidence(source, one.text) for one in reversed(messages))


def marked(messages: list[KernelMessage]) -> tuple[str, ...]:
    """The PCI functions that the messages name."""
    return tuple(dict.fromkeys(one.bdf for one in messages if one.bdf))


def of_log(
    examination: Examination,
    messages: list[KernelMessage],
    cause: str,
    fix: Plan | None,
    severity: Severity | None = None,
) -> Outcome:
    """Report what the messages mean, with the messages as evidence."""
    bdfs = marked(messages)
    where = f"{join_limited(bdfs)}: " if bdfs else ""
    return found(f"{where}{cause}", *said(examination, messages), fix=fix, severity=severity, devices=bdfs)
