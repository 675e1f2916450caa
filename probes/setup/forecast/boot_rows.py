"""Forecast of the boot itself: the command line, and an initial RAM disk older than its configuration."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.kernel.boot_loader import GRUB_SETTINGS
from probes.facts.kernel.next_boot import words_that_matter
from probes.queries.finding import Evidence
from probes.setup.forecast.model import ForecastRow, RowBuilder
from probes.setup.forecast.next_start import Start
from probes.snapshot.examination import Examination

_PASSTHROUGH = {"iommu=pt", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off", "iommu=off"}


def boot_rows(examination: Examination, start: Start) -> list[ForecastRow]:
    """Return the rows about the command line and the boot image."""
    return [_command_line(examination, start), _boot_image(start)]


def _command_line(examination: Examination, start: Start) -> ForecastRow:
    """Compare the words that matter with those of the running kernel."""
    row, line = RowBuilder("command-line", "Command line"), start.line
    kernel = examination.node.kernel
    now: Maybe[str] = kernel if isinstance(kernel, Unknown) else kernel.cmdline
    if isinstance(line, Unknown):
        reason = f"the next command line is unknown ({line})"
        return row.unknown(reason, decides=False)
    later = words_that_matter(line.line)
    shown = Evidence(line.source, " ".join(later) or "no IOMMU, PCI or module options")
    if isinstance(now, Unknown):
        reason = " ".join(later) or "no IOMMU, PCI or module options"
        return row.will(reason, shown)
    before = words_that_matter(now)
    forgotten = [word for word in words_that_matter(known(start.configured, "")) if word not in later]
    if forgotten:
        written = Evidence(GRUB_SETTINGS, " ".join(forgotten))
        reason = f"{' '.join(forgotten)} is set but not in {line.source}: write GRUB's configuration again"
        return row.risk(reason, written, shown)
    gone = [word for word in before if word not in later]
    new = [word for word in later if word not in before]
    running = Evidence("/proc/cmdline", " ".join(before) or "no IOMMU, PCI or module options")
    if line.has_variables and gone:
        reason = "the boot entry uses boot loader variables whose values are unknown"
        return row.unknown(reason, shown, running, decides=False)
    if not gone and not new:
        reason = f"as now: {' '.join(before)}" if before else "as now"
        return row.will(reason, shown)
    parts = [f"without {' '.join(gone)}"] * bool(gone) + [f"with {' '.join(new)}"] * bool(new)
    reason = f"the next boot is {' and '.join(parts)}"
    if not _PASSTHROUGH.isdisjoint(gone) and _PASSTHROUGH.isdisjoint(later):
        reason += ": the IOMMU may translate DMA between NIC and GPU"
    return row.risk(reason, shown, running)


def _boot_image(start: Start) -> ForecastRow:
    """Compare the age of the initial RAM disk with the files of modprobe.d that it contains."""
    row, image = RowBuilder("boot-image", "Boot image"), start.image
    if isinstance(image, Unknown):
        absent = image.reason is Reason.NOT_THERE
        reason = "no initial RAM disk under the usual names" if absent else f"unknown ({image})"
        return row.unknown(reason, decides=False)
    if isinstance(start.times, Unknown) or image not in start.times:
        why = start.times.detail if isinstance(start.times, Unknown) else "no answer"
        return row.unknown(f"its age is unknown (stat: {why or 'no answer'})", decides=False)
    times = known(start.times, {})
    newer = [path for path in start.settings if times.get(path, 0) > times[image]]
    if newer:
        reason = f"{image} is older than {', '.join(newer[:3])}: rebuild it, or the boot uses old settings"
        evidence = tuple(Evidence(f"stat {path}", "newer than the boot image") for path in newer[:3])
        return row.risk(reason, *evidence)
    reason = "newer than every setting of GPU and RDMA modules"
    return row.will(reason, Evidence(f"stat {image}", reason))
