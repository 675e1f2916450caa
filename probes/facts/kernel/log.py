"""The kernel log's messages about GPUs, NICs and the modules between them.

They come from dmesg(1). If kernel.dmesg_restrict denies it, they come from journalctl(1), which the groups
adm and systemd-journal may also read. A log that cannot be read is unknown, which is not the same as a log
without messages. The ring buffer drops old messages: `since_seconds` is the age of the oldest line.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from enum import Enum
from functools import cache

from probes.base.data_files import read_text
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.nic_families import FAMILIES, MELLANOX
from probes.host.protocol import CommandOutput, Host


class LogKind(Enum):
    """What a message is about."""

    XID = "Xid"  # a GPU's error; `number` is the Xid
    SXID = "SXid"  # an NVSwitch's error
    GPU_LOST = "GPU fell off the bus"
    NVLINK = "NVLink links not detected"
    GPU_DRIVER = "GPU driver failed to start"
    PEERMEM = "peer memory module"
    P2P_REFUSED = "peer-to-peer refused by the GPU driver"
    SYMBOL_VERSION = "symbol version mismatch"
    UNKNOWN_SYMBOL = "unknown symbol"
    NO_SYMBOL_VERSION = "symbol without a version"
    EFA_PEERMEM = "EFA's peer memory module"
    CXI_GPU = "Slingshot driver without GPU support"
    OTHER_KERNEL = "module built for another kernel"
    UNSIGNED = "unsigned module loaded"
    SIGNATURE_REJECTED = "module signature rejected"
    LOCKDOWN = "kernel lockdown"
    NIC_HEALTH = "NIC health"
    NIC_COMMAND = "NIC firmware command failed"
    NIC_POWER = "NIC power or temperature"
    NIC_LINK = "NIC link"
    PCIE_BANDWIDTH = "PCIe bandwidth limited"
    AER = "PCIe error"
    IOMMU_FAULT = "IOMMU fault"
    SMMU_SVA = "page tables not shared with a GPU"
    HUNG_TASK = "task blocked"


@frozen
class KernelMessage:
    """One message that is relevant to GPUDirect RDMA."""

    kind: LogKind
    seconds: Maybe[float]  # since boot
    text: str  # at most 300 characters
    bdf: str | None = None  # "0000:9b:00.0"; an Xid's function is always 0
    number: int | None = None  # Xid, SXid; errno of an unknown symbol (-22, -2, 0); pid of a blocked task
    module: str | None = None  # of a blocked task: the driver of GPUs or RDMA in which it waits
    symbol: str | None = None


@frozen
class KernelLogFacts:
    """The latest messages of each kind and Xid, in the order of the log, and the total counts."""

    source: str  # "dmesg --raw --kernel"
    since_seconds: Maybe[float]  # time since boot of the oldest line
    messages: tuple[KernelMessage, ...]
    counts: dict[LogKind, int] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)  # when a driver last did: of "nvidia", by NIC
    only_warnings: bool = False  # of a long log, only warnings and errors are complete since `since_seconds`


KEPT_OF_EACH_KIND = 20  # and of each Xid
_XIDS = 256  # upper bound of Xid numbers
TEXT_LIMIT = 300
_LINE_LIMIT = 1000
_MAX_LINES = 200_000
_NEWEST = 500
_SECONDS = 3.0

DMESG = ("dmesg", "--raw", "--kernel")
_WARNINGS = "--level=emerg,alert,crit,err,warn"
_JOURNAL = (
    *("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet"),
    *("--output=short-monotonic", "--lines=5000"),
)
_RESTRICT = "/proc/sys/kernel/dmesg_restrict"

# "<6>[    2.608284] text" of dmesg --raw, "[    2.608284] host kernel: text" of short-monotonic,
# "[Sun Feb 23 16:24:18 2025] text" of dmesg -T, which has no time since boot.
_LINE = re.compile(
    r"(?:<\d{1,4}>)?\[(?: {0,12}(\d{1,12}\.\d{1,9})|[^\]]{1,40})\](?:\[[^\]]{1,20}\])? ?"
    r"(?:\S{1,64} kernel: )?(.*)"
)

UNSUPPORTED_GPU = "installed in this system is not supported by"
_BDF = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
SHORT_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_NAME = r"([\w.-]{1,64})"
_PARTS = {  # of the expressions in log_forms.txt
    "{mlx}": "mlx[45]_core {bdf}",
    # mlx5_core.h, mlx5_core_err and _warn, not _info: "%s:%d:(pid %d): "; some begin with the function alone.
    "{call}": r"(?:\w{1,64}:(?:\d{1,6}:)?(?:\(pid \d{1,10}\):)? )?",
    "{bdf}": f"(?P<bdf>{_BDF})",
    "{short_bdf}": f"(?P<bdf>{SHORT_BDF})",
    "{module}": f"(?P<module>{_NAME})",
    "{symbol}": f"(?P<symbol>{_NAME})",
    "{unsupported}": UNSUPPORTED_GPU,
}

# Of NICs that are not NVIDIA's, the catalogue of messages says what a line is: its messages by kind.
_NAMES = "|".join(name for family in FAMILIES if family not in MELLANOX for name in family.modules)
OTHER_NICS = rf"(?:{_NAMES}) (?P<bdf>{_BDF})(?: [^:]{{1,48}})?"
_OTHER_NIC = re.compile(rf"(?:{OTHER_NICS}|infiniband (?!mlx[45]_)\S{{1,32}}|irdma): ")
OTHER_NIC_KINDS = {
    **dict.fromkeys(("bnxt-stall", "bnxt-reset", "bnxt-storm", "bnxt-doorbells"), LogKind.NIC_HEALTH),
    **dict.fromkeys(("irdma-critical", "irdma-reset", "irdma-event-queue"), LogKind.NIC_HEALTH),
    **dict.fromkeys(("ice-reset-failed", "idpf-reset", "efa-dead", "ionic-heartbeat"), LogKind.NIC_HEALTH),
    **dict.fromkeys(("cxi-disabled", "cxi-pause", "mana-timeout"), LogKind.NIC_HEALTH),
    **dict.fromkeys(("bnxt-command", "bnxt-command-timeout", "bnxt-verbs", "bnxt-hwrm"), LogKind.NIC_COMMAND),
    **dict.fromkeys(("irdma-command", "ionic-command", "efa-command"), LogKind.NIC_COMMAND),
    **dict.fromkeys(("nic-link-down", "cxi-cable", "bnxt-module", "ice-module"), LogKind.NIC_LINK),
    "bnxt-heat": LogKind.NIC_POWER,
}


@cache
def _patterns() -> tuple[tuple[LogKind, re.Pattern[str]], ...]:
    """Return the compiled patterns, which take a hundredth of a second: most logs have no relevant line."""
    found = []
    for line in read_text(__package__, "log_forms.txt").splitlines():
        kind, _, form = line.partition(" ")
        if kind != "#":
            for part, pattern in _PARTS.items():
                form = form.replace(part, pattern)
            found.append((LogKind[kind], re.compile(form)))
    return tuple(found)


# A function of a stack trace with its module (kernel/kallsyms.c, __sprint_symbol).
_IN_DRIVER = re.compile(
    r"\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8} "
    r"\[(nvidia\w{0,40}|mlx[45]_\w{1,20}|ib_\w{1,20}|rdma_\w{1,20}|gdrdrv)\b"
)
# A driver starts: OGK kernel-open/nvidia/nv.c; mlx5/core/main.c, for each NIC.
_STARTS = re.compile(r"NVRM: loading (?:NVIDIA|nvidia) |mlx5_core (\S{1,16}): firmware version: ")
_TRACE_LINES = 80  # of a blocked task, with its registers
# drivers/pci/pcie/aer.c: "severity=Corrected", in newer kernels "Correctable"; "AER: Multiple Corrected …".
_CORRECTED = re.compile(r"severity=Correct|AER: (?:Multiple )?Correct")
# Rules out nearly every irrelevant line with a single search.
_RELEVANT = re.compile(
    r"NVRM: |SXid|symbol|version magic|is rejected|verification failed|Lockdown|peer[-_]?mem|nv_mem"
    r"|limited by|mlx[45]_core|AER: |Bus Error|DMAR|dmar|AMD-Vi|arm-smmu|reg mr failed|blocked for more"
    r"|Link DOWN|register mr|command REG_MR"
)


def probe(host: Host) -> Maybe[KernelLogFacts]:
    """Run dmesg, else journalctl.

    Of a log of many megabytes only the end is read, and of the time before that the warnings.
    NEEDS_ROOT: both refuse. NOT_THERE: neither is installed, or the host is a dump, which runs no commands.
    """
    answer = host.run(DMESG, _SECONDS)
    argv: tuple[str, ...] = DMESG
    newest = ""
    if (isinstance(answer, Unknown) and answer.reason is not Reason.NOT_THERE) or _is_cut(answer):
        newest = answer.stdout if not isinstance(answer, Unknown) else ""
        argv = (*DMESG, _WARNINGS)
        answer = host.run(argv, _SECONDS)
        if newest and (isinstance(answer, Unknown) or answer.exit_status):
            return parse_log(newest, " ".join(DMESG))
    if not isinstance(answer, Unknown) and answer.exit_status == 0 and (newest or answer.stdout.strip()):
        text = _older(answer.stdout, newest) + newest
        return parse_log(text, " ".join(argv), only_warnings=_WARNINGS in argv)
    journal = host.run(_JOURNAL, _SECONDS)
    if not isinstance(journal, Unknown) and journal.exit_status == 0 and journal.stdout.strip():
        return parse_log(journal.stdout, " ".join(_JOURNAL[:3]))
    if isinstance(answer, Unknown) and answer.reason is Reason.NOT_THERE and not isinstance(journal, Unknown):
        answer = journal
    return answer if isinstance(answer, Unknown) else _refusal(host, " ".join(answer.argv), answer.stderr)


def _is_cut(answer: Maybe[CommandOutput]) -> bool:
    return not isinstance(answer, Unknown) and answer.exit_status == 0 and answer.left_out_bytes > 0


def _older(warnings: str, newest: str) -> str:
    """Return the lines of `warnings` from before the first one of `newest`."""
    first = next((at for at, _ in _lines(newest) if not isinstance(at, Unknown)), None)
    if first is None:
        return warnings if not newest else ""
    lines = warnings.split("\n")
    count = bisect_left(lines, first, key=lambda line: known(next(_lines(line))[0], first))
    return "".join(f"{line}\n" for line in lines[:count])


def newest_lines(host: Host) -> Maybe[tuple[str, ...]]:
    """Return the newest lines as dmesg prints them, oldest first; unknown as in `probe`."""
    answer = host.run(DMESG, _SECONDS)
    if isinstance(answer, Unknown):
        return answer
    if answer.exit_status:
        return _refusal(host, " ".join(DMESG), answer.stderr)
    return tuple(printable(line, TEXT_LIMIT) for line in answer.stdout.splitlines()[-_NEWEST:])


def _refusal(host: Host, name: str, stderr: str) -> Unknown:
    error = printable(" ".join(stderr.split()), 160)
    if host.is_root():
        return Unknown(Reason.IO_ERROR, name, error or "no kernel messages, even for root (a container?)")
    restrict = host.read(_RESTRICT, 4096)
    why = "kernel.dmesg_restrict is 1; " if restrict == "1" else ""
    return Unknown(Reason.NEEDS_ROOT, name, f"{why}root and the adm and systemd-journal groups can read it")


def started_driver(line: str) -> str:
    """Return whose start a line logs: "nvidia", or a NIC's BDF for mlx5_core; "" for other lines."""
    match = _STARTS.match(line)
    return "" if match is None else match[1] or "nvidia"


def parse_log(text: str, source: str = "", only_warnings: bool = False) -> KernelLogFacts:
    """Parse a kernel log as dmesg or journalctl prints it."""
    counts: dict[LogKind, int] = {}
    kept: dict[tuple[LogKind, int | None], list[tuple[int, KernelMessage]]] = {}
    since: Maybe[float] = Unknown(Reason.NOT_THERE, source, "no line has a boot-relative timestamp")
    started: dict[str, float] = {}
    hung: list[tuple[int, KernelMessage]] = []  # with the latest blocked task, until its driver is known
    for number, (seconds, line) in enumerate(_joined(_lines(text))):
        if isinstance(since, Unknown) and not isinstance(seconds, Unknown):
            since = seconds
        message = recognize(line, seconds)
        if message is None:
            if not isinstance(seconds, Unknown) and (driver := started_driver(line)):
                started[driver] = seconds
            if hung and (match := _IN_DRIVER.search(line)) and number - hung[-1][0] <= _TRACE_LINES:
                hung[-1] = hung[-1][0], replace(hung[-1][1], module=match[1])
                hung = []
            continue
        counts[message.kind] = counts.get(message.kind, 0) + 1
        # A GPU that logs Xid 31 all day must not push out the only Xid 79.
        xid = message.number if message.kind is LogKind.XID and (message.number or 0) < _XIDS else None
        of_kind = kept.setdefault((message.kind, xid), [])
        of_kind.append((number, message))
        hung = of_kind if message.kind is LogKind.HUNG_TASK else []
        del of_kind[:-KEPT_OF_EACH_KIND]
    ordered = sorted((pair for pairs in kept.values() for pair in pairs), key=lambda pair: pair[0])
    messages = tuple(message for _, message in ordered)
    return KernelLogFacts(source, since, messages, counts, started, only_warnings)


def _lines(text: str) -> Iterator[tuple[Maybe[float], str]]:
    unknown = Unknown(Reason.NOT_THERE, "", "the line has no boot-relative timestamp")
    for line in text.split("\n")[-_MAX_LINES:]:
        match = _LINE.fullmatch(line[:_LINE_LIMIT])
        if match is None:
            yield unknown, line[:_LINE_LIMIT]
        else:
            yield (float(match[1]) if match[1] else unknown), match[2]


# The GPU driver prints this message in three lines or more (nv-pci.c, nv.c and osapi.c of its open modules).
_BEGINS = re.compile(r"NVRM: The NVIDIA GPU [0-9a-fA-F:.]{1,20}(?: \(PCI ID: [0-9a-fA-F:]{1,12}\))?")
_MOST_JOINED = 3


def _joined(lines: Iterable[tuple[Maybe[float], str]]) -> Iterator[tuple[Maybe[float], str]]:
    """Yield the lines, with the lines of the message "The NVIDIA GPU …" joined into one."""
    pending: list[tuple[Maybe[float], str]] = []
    for seconds, line in lines:
        # dmesg and journalctl indent the lines of a message of several lines, and leave out their time.
        more = line.lstrip() if pending else ""
        if more.startswith("NVRM: ") and len(pending) < _MOST_JOINED and not _BEGINS.match(more):
            pending.append((seconds, more.removeprefix("NVRM: ")))
            continue
        if pending:
            yield pending[0][0], " ".join(part for _, part in pending)
            pending = []
        if _BEGINS.fullmatch(line.rstrip()):
            pending = [(seconds, line.rstrip())]
        else:
            yield seconds, line
    if pending:
        yield pending[0][0], " ".join(part for _, part in pending)


def recognize(line: str, seconds: Maybe[float]) -> KernelMessage | None:
    """Return the message in a line (without its time) if it is relevant, else None."""
    line = line[:_LINE_LIMIT]
    if _RELEVANT.search(line) is None:
        return _of_other_nic(line, seconds)
    for kind, pattern in _patterns():
        match = pattern.match(line)
        if match is None:
            continue
        named = match.groupdict()
        bdf, number, module = named.get("bdf"), named.get("number"), named.get("module")
        return KernelMessage(
            kind=kind,
            seconds=seconds,
            text=printable(line, TEXT_LIMIT),
            bdf=full_bdf(bdf) if bdf else None,
            number=int(number) if number else None,
            module=module.replace("-", "_") if module else None,
            symbol=named.get("symbol"),
        )
    return _of_other_nic(line, seconds)


def _of_other_nic(line: str, seconds: Maybe[float]) -> KernelMessage | None:
    if (match := _OTHER_NIC.match(line)) is None:
        return None
    # Most nodes have no such NIC, and no need of the catalogue.
    from probes.messages.catalogue import KERNEL_OTHER_NICS, catalogue
    from probes.messages.message import NOTHING_KNOWN, Weight, meaning_of

    said = catalogue(KERNEL_OTHER_NICS).find(line)
    kind = None if said is None else OTHER_NIC_KINDS.get(said.message.id)
    if said is None or kind is None:
        return None
    if meaning_of(said, {}, NOTHING_KNOWN).weight not in (Weight.CRITICAL, Weight.WARNING):
        return None
    return KernelMessage(
        kind, seconds, printable(line, TEXT_LIMIT), full_bdf(match["bdf"]) if match["bdf"] else None
    )


_NO_CABLE = ("unplugged", "Cable disabled", "NIC Link is Down")


def may_be_unused_port(message: KernelMessage) -> bool:
    """Return whether the driver of a port without a cable or module logs this when it starts."""
    return message.kind is LogKind.NIC_LINK and any(words in message.text for words in _NO_CABLE)


def is_corrected(message: KernelMessage) -> bool:
    """Return whether a PCIe error was corrected, so that no transfer failed."""
    return message.kind is LogKind.AER and _CORRECTED.search(message.text) is not None


def full_bdf(text: str) -> str:
    """Return the BDF as sysfs writes it, from "0000:9b:00", "00000000:9B:00.0", or "9b:00.0" (domain 0)."""
    if re.fullmatch(r"[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", text):
        text = f"0000:{text}"
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" + ("" if "." in rest else ".0")
