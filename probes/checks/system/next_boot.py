"""What keeps a boot from using its configuration: only a forecast looks at it."""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.plan import make_plan
from probes.facts.kernel.boot import NextBootFacts, words_that_matter
from probes.facts.kernel.boot_loader import GRUB_SETTINGS
from probes.plans.boot import initramfs_step, settings_steps
from probes.queries.finding import Area, Outcome, end_with, found, need, passed
from probes.snapshot.examination import Examination

AREA = Area("system")
_NOT_ASKED = Evidence("gdrtop forecast", "predicts the next boot")


def _facts(examination: Examination) -> NextBootFacts:
    """Return the facts of the boot that is forecast; end the check on a node that runs."""
    if examination.next_boot is None:
        end_with(passed(_NOT_ASKED))
    assert examination.next_boot is not None
    return examination.next_boot


@AREA.warning(
    "boot-settings-not-written",
    "Kernel options are set in GRUB's settings, but not in its configuration",
    "GRUB manual, Simple configuration handling; update-grub(8), grub2-mkconfig(8)",
    ok="GRUB's configuration has every kernel option from its settings",
    impact="The next boot starts without these options.",
)
def boot_settings_not_written(examination: Examination) -> Outcome:
    """Compare the options of /etc/default/grub with the entry of the kernel."""
    facts = _facts(examination)
    source = Evidence(GRUB_SETTINGS, "not used by this boot loader")
    options = need(facts.configured, GRUB_SETTINGS, absent=source)
    line = need(facts.line, "the boot entry", absent=Evidence("grub.cfg", "no entry for this kernel"))
    later = words_that_matter(line.line)
    forgotten = [word for word in words_that_matter(options) if word not in later]
    if not forgotten:
        return passed(Evidence(line.source, " ".join(later) or "no IOMMU, PCI or module options"))
    return found(
        "The settings were edited after the configuration was written.",
        Evidence(GRUB_SETTINGS, " ".join(forgotten)),
        Evidence(line.source, " ".join(later) or "no IOMMU, PCI or module options"),
        fix=make_plan("Regenerate GRUB's configuration", *settings_steps(examination, forgotten)),
    )


@AREA.warning(
    "boot-image-older-than-settings",
    "The boot image is older than GPU or RDMA module settings",
    "initramfs-tools(7), dracut(8)",
    ok="The boot image is newer than the GPU and RDMA module settings",
    impact="Modules that load from the boot image get the old options and blacklists.",
)
def boot_image_older_than_settings(examination: Examination) -> Outcome:
    """Compare the age of the initial RAM disk with the files of modprobe.d that it contains."""
    facts = _facts(examination)
    none = Evidence("/boot", "no initial RAM disk under the usual names, or its age is not shown")
    newer = need(facts.newer, "the age of the boot image", absent=none)
    image = need(facts.image, "the boot image", absent=none)
    if not newer:
        return passed(Evidence(f"stat {image}", "newer than every setting"))
    return found(
        "It was built before the settings changed, and contains a copy of the old ones.",
        *(Evidence(f"stat {path}", f"newer than {image}") for path in newer[:4]),
        fix=make_plan("Rebuild the boot image", initramfs_step(examination)),
    )
