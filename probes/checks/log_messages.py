"""What the checks of the kernel log have in common."""

from __future__ import annotations

from collections.abc import Callable

from probes.checks.finding import Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.port_use import at_most, several
from probes.examination import Examination
from probes.kernel_log import KernelLogFacts, KernelMessage, LogKind
from probes.plan import Plan
from probes.unknown import Reason, Unknown

_BOOT_SECONDS = 60.0


def log_messages(
    examination: Examination, kind: LogKind, wanted: Callable[[KernelMessage], bool] = lambda _: True
) -> Outcome | list[KernelMessage]:
    """The messages of a kind in the kernel log; else what the check says."""
    log = examination.kernel_log
    if isinstance(log, Unknown):
        return unsure(needs_log(log))
    chosen = [one for one in log.messages if one.kind is kind and wanted(one)]
    if chosen:
        return chosen
    if log.counts.get(kind, 0) > sum(one.kind is kind for one in log.messages):
        return unsure(
            f"needs the older messages: there were {log.counts[kind]}, and only the latest are kept"
        )
    return passed(Evidence(log.source, f"no such message ({kind.value}){_how_far(log)}"))


def _how_far(log: KernelLogFacts) -> str:
    told = " of level warn or above" if log.only_warnings else ""
    since = log.since_seconds
    if not isinstance(since, Unknown) and since > _BOOT_SECONDS:
        told += f" since {since:.0f} s after boot; what was before is gone"
    return told


def needs_log(log: Unknown) -> str:
    """What it takes to read the kernel log."""
    root = log.reason is Reason.NEEDS_ROOT
    return f"{'needs root: ' if root else 'needs '}the kernel log{'' if root else f': {log}'}"


def said(examination: Examination, messages: list[KernelMessage]) -> tuple[Evidence, ...]:
    """The messages as evidence, the latest first."""
    log = examination.kernel_log
    source = "dmesg" if isinstance(log, Unknown) else log.source
    return at_most(Evidence(source, one.text) for one in reversed(messages))


def marked(messages: list[KernelMessage]) -> tuple[str, ...]:
    """The PCI functions that the messages name."""
    return tuple(dict.fromkeys(one.bdf for one in messages if one.bdf))


def of_log(
    examination: Examination,
    messages: list[KernelMessage],
    told: str,
    fix: Plan | None,
    severity: Severity | None = None,
) -> Outcome:
    """What the messages mean, with the messages as evidence."""
    bdfs = marked(messages)
    where = f"{several(list(bdfs))}: " if bdfs else ""
    return found(f"{where}{told}", *said(examination, messages), fix=fix, severity=severity, devices=bdfs)
