"""What the next boot reads changes in one way: doctor, setup, its script and a forecast say the same."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from probes.base.plan import Step
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.registry import findings
from probes.facts.kernel.boot import BootFacts
from probes.facts.kernel.boot_loader import BootLoader
from probes.facts.system.packages import Distribution, Family
from probes.plans.boot import (
    COMMAND_LINE_PROGRAMS,
    INITRAMFS_PROGRAMS,
    command_line_steps,
    initramfs_step,
    settings_steps,
)
from probes.plans.packages import PACKAGE_PROGRAMS
from probes.queries.finding import Finding, Status
from probes.setup.situation import Situation, read_situation
from probes.setup.step import SetupRecord
from probes.setup.steps.checked import CheckedStep
from probes.setup.steps.guide import Guide, build_guide, remaining_plans
from probes.setup.steps.step_list import STEPS
from probes.setup.twin.build import start_twin
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.tiers import USUAL_FAULTS, usual

NODE = "pcie-l40s+iommu-translated"
# A simulated node with each distribution.
DISTRIBUTIONS = {
    "ubuntu": "hgx-h100",
    "rocky": "pcie-l40s",
    "sles": "slingshot",
    **{name: f"pcie-l40s+new-node-{name}" for name in ("debian", "azure-linux", "talos", "openshift")},
}
OPTION = {
    "ubuntu": "/etc/default/grub.d/gdrtop-iommu.cfg, update-grub",
    "debian": "/etc/default/grub.d/gdrtop-iommu.cfg, update-grub",
    "rocky": "grubby --update-kernel=ALL --args=iommu=pt",
    "sles": "Add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub., "
    "grub2-mkconfig -o /boot/grub2/grub.cfg",
    "azure-linux": "Add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub., "
    "grub2-mkconfig -o /boot/grub2/grub.cfg",
    "talos": "Create a Talos boot image with the extra kernel argument iommu=pt, and upgrade to it.",
    "openshift": "Add iommu=pt to spec.kernelArguments in the MachineConfig for this node's pool.",
}
ONLY_BOOT = {"iommu-translated", "acs-on", "module-blacklisted-cmdline", "initramfs-stale"}


@cache
def system_of(name: str) -> tuple[Maybe[Distribution], Maybe[BootFacts]]:
    examination = examine(SimulatedHost(DISTRIBUTIONS[name]))
    return examination.distribution, examination.boot


def on(examination: Examination, name: str) -> Examination:
    distribution, boot = system_of(name)
    return replace(examination, distribution=distribution, boot=boot)


def texts(steps: Iterable[Step]) -> list[str]:
    return [shlex.join(step.argv) or (step.file.path if step.file else step.why) for step in steps]


@pytest.fixture(scope="module")
def node() -> Examination:
    return examine(SimulatedHost(NODE))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_an_option_is_added_as_the_distribution_does_it(node: Examination, name: str) -> None:
    steps = command_line_steps(on(node, name), "iommu", "iommu=pt")
    assert ", ".join(texts(steps)) == OPTION[name]


@pytest.mark.parametrize(
    ("loader", "command"),
    [
        (BootLoader.GRUB, "grub2-mkconfig -o /boot/grub2/grub.cfg"),
        (BootLoader.GRUB_BLS, "grubby --update-kernel=ALL --args=iommu=pt"),
        (BootLoader.OSTREE, "rpm-ostree kargs --append-if-missing=iommu=pt"),
        (BootLoader.SYSTEMD_BOOT, "Add iommu=pt to /etc/kernel/cmdline."),
        (BootLoader.UKI, "kernel-install add"),
        (BootLoader.MACHINE_CONFIG, "Add iommu=pt to spec.kernelArguments"),
        (BootLoader.TALOS, "extra kernel argument iommu=pt"),
        (Unknown(Reason.NEEDS_ROOT, "/boot"), "with this node's boot loader (needs root)"),
    ],
    ids=str,
)
def test_the_command_line_is_set_by_the_boot_loader_that_the_node_has(
    node: Examination, loader: Maybe[BootLoader], command: str
) -> None:
    assert isinstance(node.boot, BootFacts)
    here = replace(node, boot=replace(node.boot, loader=loader))
    assert command in ", ".join(texts(command_line_steps(here, "iommu", "iommu=pt")))
    removed = ", ".join(texts(command_line_steps(here, "iommu", remove="iommu=pt")))
    assert "iommu=pt" in removed
    assert "add iommu=pt" not in removed.lower()
    quoted = command_line_steps(here, "acs", 'pci=disable_acs_redir="a;b"')
    assert quoted[0].to_copy  # only where GRUB reads grub.d does gdrtop write it


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("ubuntu", "update-initramfs -u -k all"),
        ("sles", "dracut --regenerate-all --force"),
        ("rocky", "dracut --regenerate-all --force"),
    ],
)
def test_the_boot_image_is_rebuilt_by_one_command(node: Examination, name: str, command: str) -> None:
    here = on(node, name)
    step = initramfs_step(here, "may contain modprobe.d")
    assert (shlex.join(step.argv), step.why) == (command, "Rebuild the initramfs (may contain modprobe.d)")
    unread = Unknown(Reason.NEEDS_ROOT, "/boot")
    assert initramfs_step(replace(here, boot=unread)).argv == step.argv
    other = Distribution("gentoo", "", "Gentoo", Family.OTHER)
    assert "(RPM)" in initramfs_step(replace(here, boot=unread, distribution=other)).why


@pytest.mark.parametrize(
    ("cmdline", "left"),
    [
        ("module_blacklist=nvidia_peermem", ""),
        ("module_blacklist=nouveau module-blacklist=nouveau,nvidia_peermem", "module_blacklist=nouveau"),
    ],
)
def test_what_the_last_blacklist_of_the_kernel_also_has_stays(cmdline: str, left: str) -> None:
    examination = examine(SimulatedHost("hgx-h100+module-blacklisted-cmdline"))
    assert not isinstance(examination.node.kernel, Unknown)
    kernel = replace(examination.node.kernel, cmdline=cmdline)
    changed = replace(examination, node=replace(examination.node, kernel=kernel))
    (blocked,) = findings(on(changed, "rocky"), only={"module-blacklisted-cmdline"})
    assert blocked.fix is not None
    removed = cmdline.split()[-1]
    added = (f"--args={left}",) if left else ()
    assert blocked.fix.steps[0].argv == ("grubby", "--update-kernel=ALL", f"--remove-args={removed}", *added)
    (blocked,) = findings(on(changed, "ubuntu"), only={"module-blacklisted-cmdline"})
    assert blocked.fix is not None
    assert "GRUB_CMDLINE_LINUX or GRUB_CMDLINE_LINUX_DEFAULT in" in blocked.fix.steps[0].why


@pytest.mark.parametrize(
    "fault", ["iommu-translated", "acs-on", "acs-option-ignored", "pcie-devctl-payload-differs"]
)
def test_a_plan_that_changes_the_command_line_names_the_reboot(fault: str) -> None:
    examination = examine(SimulatedHost(f"{FAULTS[fault].on}+{fault}"))
    for finding in findings(examination, only=FAULTS[fault].finds):
        if finding.status is Status.FOUND and finding.fix is not None:
            assert any("reboot" in text.lower() for text in texts(finding.fix.steps)), finding.id


def test_settings_of_grub_reach_the_next_boot_as_the_boot_loader_reads_them(node: Examination) -> None:
    assert texts(settings_steps(on(node, "rocky"), ["a=1", "b"])) == [
        "grubby --update-kernel=ALL '--args=a=1 b'"
    ]
    assert texts(settings_steps(on(node, "ubuntu"), ["a=1", "b"])) == ["update-grub"]


# The doctor, setup, its script, forecasts and manifests


def guide_of(examination: Examination, found: Sequence[Finding], situation: Situation) -> Guide:
    return build_guide(replace(situation, examination=examination), found, (), SetupRecord(), "boot")


def of_system(steps: Iterable[Step]) -> set[str]:
    """Return what differs between systems: commands, files, and texts that name a boot loader's file."""
    programs = (*COMMAND_LINE_PROGRAMS, *INITRAMFS_PROGRAMS, *PACKAGE_PROGRAMS, "mokutil", "systemctl")
    words = re.compile(r"GRUB_CMDLINE_LINUX|kernel command line|/etc/kernel|kernelArguments|Talos boot image")
    return {
        text
        for step, text in zip(steps, texts(steps), strict=True)
        if step.argv[:1] in [(program,) for program in programs] or step.file or words.search(text)
    }


COVERED = [
    name
    for name, fault in FAULTS.items()
    if any(isinstance(step, CheckedStep) and any(map(step.covers, fault.finds)) for step in STEPS)
]


@pytest.mark.parametrize("fault", usual(COVERED, USUAL_FAULTS | ONLY_BOOT))
def test_the_doctor_setup_and_its_script_say_the_same_on_every_distribution(fault: str) -> None:
    host = SimulatedHost(f"{FAULTS[fault].on}+{fault}")
    examination = examine(host)
    situation = read_situation(host, examination)
    for name in DISTRIBUTIONS:
        here = on(examination, name)
        found = findings(here, only=FAULTS[fault].finds)
        guide = guide_of(here, found, situation)
        script = of_system([step for plan in remaining_plans(guide) for step in plan.steps])
        for finding in found:
            steps = [step for step in guide.steps if finding.id in step.findings and step.plan is not None]
            if finding.fix is None or not steps:
                continue
            wanted = of_system(finding.fix.steps)
            planned = {text for step in steps if step.plan for text in of_system(step.plan.steps)}
            assert wanted <= planned, (name, finding.id)
            assert wanted <= script or any(not step.is_open for step in steps), (name, finding.id)


@pytest.mark.parametrize("name", ["hgx-h100", "pcie-l40s", "slingshot"])
def test_a_forecast_has_the_commands_of_the_node(name: str) -> None:
    host = SimulatedHost(name)
    before = examine(host)
    release = before.node.kernel_release
    assert isinstance(release, str)
    after = examine(start_twin(host, before, before.boot, release))
    for steps_of in (initramfs_step, lambda node: command_line_steps(node, "iommu", "iommu=pt")):
        assert steps_of(after) == steps_of(before)


# One home

_NAMES = "|".join((*COMMAND_LINE_PROGRAMS, *INITRAMFS_PROGRAMS, "bootctl", "mkinitrd"))
_COMMAND = re.compile(rf"(?<![\w/.-])(?:{_NAMES})(?![\w(-])")
# The commands, and files that read them: what is installed here, what a user gives, what a Dockerfile runs.
ONE_HOME = {
    "probes/plans/boot.py": (_COMMAND, ("probes/facts/kernel/boot.py",)),
    "probes/plans/common.py": (
        re.compile(r"^systemctl$"),
        ("probes/facts/system/services.py", "probes/setup/twin/", "tui/actions/manual_steps.py"),
    ),
    "probes/plans/packages.py": (
        re.compile(
            r"^(?:apt-get|dnf|dpkg|rpm|tdnf|zypper)$|(?:apt|apt-get|dnf|tdnf|yum|zypper) (?:-y )?install"
        ),
        ("probes/facts/system/packages.py", "probes/setup/manifests/containers.py"),
    ),
}


def literals(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_commands_of_one_kind_are_written_in_one_place() -> None:
    root = Path(__file__).parents[3]
    elsewhere = [
        f"{path}:{line}: {text[:60]!r}: ask {home} instead"
        for folder in ("probes", "widgets", "tui")
        for path in (str(file.relative_to(root)) for file in sorted((root / folder).rglob("*.py")))
        if not path.startswith("probes/simulation/")
        for line, text in literals(root / path)
        for home, (pattern, others) in ONE_HOME.items()
        if not path.startswith((home, *others)) and pattern.search(text)
    ]
    assert not elsewhere
