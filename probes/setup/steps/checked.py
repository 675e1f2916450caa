"""Steps whose state is that of checks: done when every check of the step is ok."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, sentences
from probes.base.text import plural
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Finding, Severity, Status
from probes.setup.step import SetupStep, StepState


@frozen
class CheckedStep:
    """A step and its checks; a check that ends with * stands for all ids that begin so."""

    id: str
    title: str
    done: str  # the reason of a step that is done: "all ports are active"
    why: str
    checks: tuple[str, ...]
    only: GdrPath | None = None  # the path that needs it; None: both
    notes_count: bool = False  # findings of severity note count as well


CHECKED = (
    CheckedStep(
        "hardware",
        "Check GPUs and NICs",
        "GPUs and NICs support GPUDirect RDMA",
        "Setup cannot fix a device that is off the bus or does not support GPUDirect RDMA by design.",
        (
            "geforce-no-gdr",
            "gpu-too-old-for-gdr",
            "vgpu-without-gdr",
            "confidential-computing-on",
            "c2c-grace-specifics-gb10",
            "xid-79-fell-off-bus",
            "gpu-missing-from-nvml",
            "pcie-function-gone",
            "pcie-config-unreachable",
            "nic-health-errors",
        ),
    ),
    CheckedStep(
        "rival",
        "Remove nv_peer_mem",
        "nv_peer_mem is not installed",
        "nv_peer_mem, the predecessor of nvidia_peermem, keeps nvidia_peermem from loading.",
        ("nv-peer-mem-conflict*",),
        notes_count=True,
    ),
    CheckedStep(
        "build",
        "Build modules in the right order",
        "modules match the kernel and each other",
        "nvidia_peermem is built against the NIC driver's ib_core. If the NIC driver is installed or upgraded"
        " afterwards, it has to be built again.",
        (
            "peermem-built-without-symbols",
            "peermem-symbol-version-mismatch*",
            "peermem-unknown-symbol-inbox-core",
            "inbox-core-beside-ofed",
            "dkms-*",
            "driver-half-updated",
            "driver-library-mismatch",
            "module-wrong-vermagic",
            "peermem-not-on-disk*",
        ),
    ),
    CheckedStep(
        "signatures",
        "Let the kernel trust the modules",
        "the kernel accepts the modules of this path",
        "With Secure Boot the kernel loads only modules that are signed with a key that it knows.",
        ("secure-boot-*", "kernel-forbids-modules-lockdown"),
    ),
    CheckedStep(
        "modules",
        "Load the modules",
        "all modules of the path are loaded",
        "Without these modules no NIC can reach GPU memory.",
        (
            "ib-core-not-loaded",
            "mlx4-core-not-loaded",
            "mlx4-ib-not-loaded",
            "mlx5-core-not-loaded",
            "mlx5-ib-not-loaded",
            "ib-uverbs-not-loaded",
            "nvidia-not-loaded",
            "nvidia-uvm-not-loaded",
            "module-blacklisted*",
            "kernel-forbids-modules-disabled",
            "nic-without-driver*",
            "nic-without-rdma-device",
            "gpu-without-driver*",
            "gpu-driver-start-failed",
            "peermem-not-loaded",
            "dev-*",
        ),
    ),
    CheckedStep(
        "peermem-parameters",
        "Set nvidia_peermem's parameters",
        "nvidia_peermem has the right parameters",
        "Wrong parameters make nvidia_peermem fail with the installed NIC driver.",
        ("peermem-parameter-*",),
        only=GdrPath.PEERMEM,
    ),
    CheckedStep(
        "dmabuf",
        "Meet the requirements of DMA-BUF",
        "kernel, driver and NICs support DMA-BUF",
        "DMA-BUF needs the open GPU kernel modules and a NIC driver that registers DMA-BUFs.",
        ("dmabuf-*", "p2p-topology-*"),
        only=GdrPath.DMABUF,
    ),
    CheckedStep(
        "fabric",
        "Start the NVLink services",
        "NVLink services run, or none are needed",
        "With NVSwitch, CUDA starts only after Fabric Manager (on B200 and B300 also NVLSM and ib_umad);"
        " rack-scale NVLink needs IMEX.",
        ("fabric-manager-down*", "gpu-fabric-*", "nvlsm-*", "ib-umad-missing", "imex-*", "nvlink-down"),
    ),
    CheckedStep(
        "iommu",
        "Set the IOMMU to passthrough",
        "the IOMMU does not translate NIC requests",
        "A translating IOMMU slows or breaks traffic between NIC and GPU.",
        ("iommu-translated", "vm-without-p2p*"),
    ),
    CheckedStep(
        "acs",
        "Disable ACS redirects",
        "no switch redirects GPU–NIC traffic",
        "ACS redirects send traffic between GPU and NIC up to the CPU and back.",
        ("acs-*",),
    ),
    CheckedStep(
        "pcie",
        "Check PCIe links and placement",
        "links, read requests and BARs are ok",
        "A narrow or slow PCIe link limits every transfer over it.",
        ("pcie-link-*", "pcie-devctl-*", "pcie-aspm-on", "bar1-too-small", "pcie-aer-uncorrectable"),
    ),
    CheckedStep(
        "ports",
        "Bring up the ports",
        "all ports are active at full rate",
        "A port that is down, slow or without a usable GID carries no RDMA traffic.",
        (
            "ib-port-not-active*",
            "link-layer-wrong",
            "rate-shown-as-sdr",
            "single-rail-*",
            "roce-gid-wrong*",
            "mtu-mismatch*",
            "roce-lossless-off",
            "roce-bond-port-down",
            "roce-rails-one-subnet",
            "roce-rp-filter-strict",
            "nic-firmware-mismatch",
        ),
    ),
    CheckedStep(
        "memlock",
        "Allow jobs to lock memory",
        "jobs can lock as much memory as they need",
        "RDMA registers locked memory. With the usual limit of a login or a service, registration fails.",
        ("memlock-*",),
    ),
    CheckedStep(
        "boot",
        "Load everything at boot",
        "the next boot loads the same modules",
        "Modules that were loaded by hand are gone after a reboot.",
        (
            "peermem-not-persistent",
            "peermem-unneeded-at-boot",
            "boot-load-race",
            "peermem-lost-after-driver-update",
            "initramfs-stale",
            "persistence-off*",
        ),
        notes_count=True,
    ),
    CheckedStep(
        "containers",
        "Set up the Kubernetes operators",
        "no operator's driver pod reports a problem",
        "Where operators own the drivers, changes on the node itself do not last.",
        ("k8s-*",),
        notes_count=True,
    ),
    CheckedStep(
        "nccl",
        "Check NCCL and its settings",
        "no NCCL setting prevents GPUDirect RDMA",
        "One wrong variable can disable GPUDirect RDMA on a healthy node.",
        (
            "nccl-*",
            "ucx-*",
            "nvshmem-*",
            "rdma-core-without-dmabuf",
            "old-userspace-abi",
            "libibverbs-missing",
        ),
    ),
    CheckedStep(
        "tools",
        "Install the benchmark tools",
        "perftest is installed and supports GPU memory",
        "Without perftest the path to GPU memory cannot be measured.",
        ("perftest-*", "libcuda-link-missing"),
        notes_count=True,
    ),
)


def checked_step(row: CheckedStep, findings: Mapping[str, Finding], path: GdrPath | None) -> SetupStep:
    """Return the step in the state that its checks give it."""
    if row.only is not None and path is not None and row.only is not path:
        return SetupStep(row.id, row.title, StepState.SKIPPED, f"not needed for {path.value}", row.why)
    own = [finding for finding in findings.values() if _is_of(row, finding.id)]
    return _step_of(row, own, path)


_OTHERS = CheckedStep(
    "others",
    "Resolve the other findings",
    "the doctor has no other critical finding or warning",
    "A node that is set up can still have a fault that slows jobs down.",
    (),
)


def other_step(findings: Mapping[str, Finding], path: GdrPath | None) -> SetupStep:
    """Return the step for what the doctor found and no other step is about."""
    own = [
        finding
        for finding in findings.values()
        if finding.status is Status.FOUND
        and finding.severity is not Severity.NOTE
        and finding.id != _WHOLE_NODE
        and finding.part_of not in findings  # it ends with its cause
        and not any(_is_of(row, finding.id) for row in CHECKED)
    ]
    return _step_of(_OTHERS, own, path)


_WHOLE_NODE = "no-gdr-path"  # the sum of what the other steps are about


def _step_of(row: CheckedStep, own: list[Finding], path: GdrPath | None) -> SetupStep:
    if path is GdrPath.DMABUF:
        own = [finding for finding in own if not finding.id.startswith(_ONLY_PEERMEM)]
    everything = [finding for finding in own if finding.status is Status.FOUND]
    found = [one for one in everything if row.notes_count or one.severity is not Severity.NOTE]
    if found:
        return SetupStep(
            row.id,
            row.title,
            StepState.TO_DO,
            _reason(found),
            row.why,
            tuple(part for finding in found for part in finding.evidence),
            merged_plan(row.title, found),
            needs_console=any(finding.id.startswith("secure-boot") for finding in found),
            findings=tuple(finding.id for finding in found),
        )
    unclear = [finding for finding in own if finding.status is Status.UNKNOWN]
    if unclear:
        more = f", and {len(unclear) - 1} more" if len(unclear) > 1 else ""
        ids = tuple(finding.id for finding in unclear)
        reason = f"{unclear[0].cause}{more}"
        return SetupStep(row.id, row.title, StepState.UNKNOWN, reason, row.why, findings=ids)
    if everything:  # notes only: the step is done, but its usual sentence would hide them
        ids = tuple(finding.id for finding in everything)
        evidence = tuple(part for finding in everything for part in finding.evidence)
        reason = f"nothing to do; note: {_reason(everything)}"
        return SetupStep(row.id, row.title, StepState.DONE, reason, row.why, evidence, findings=ids)
    return SetupStep(row.id, row.title, StepState.DONE, row.done, row.why)


# Findings about nvidia_peermem that do not matter on the path by DMA-BUF.
_ONLY_PEERMEM = (
    "peermem-built-",
    "peermem-symbol-",
    "peermem-unknown-",
    "peermem-not-on-disk",
    "peermem-not-loaded",
    "peermem-not-persistent",
    "peermem-lost-",
)


def _is_of(row: CheckedStep, id_: str) -> bool:
    return any(id_.startswith(name[:-1]) if name.endswith("*") else id_ == name for name in row.checks)


def _reason(found: list[Finding]) -> str:
    first = found[0].title
    return first if len(found) == 1 else f"{first} (and {plural(len(found) - 1, 'more problem')})"


def merged_plan(title: str, found: Iterable[Finding]) -> Plan | None:
    """Return the fixes of several findings as one plan, each command once; None if there is no fix.

    Fixes without a manual step come first, because gdrtop runs a plan up to its first manual step.
    """
    plans = [finding.fix for finding in found if finding.fix is not None]
    plans.sort(key=lambda plan: any(step.is_instruction for step in plan.steps))
    if len(plans) < 2:
        return plans[0] if plans else None
    steps: list[Step] = []
    for plan in plans:
        for step in plan.steps:
            if not any(_does_the_same(step, other) for other in steps):
                steps.append(step)
    return Plan(
        title,
        tuple(sorted(steps, key=is_reboot)),
        reversible=all(plan.reversible for plan in plans),
        needs_reboot=any(plan.needs_reboot for plan in plans),
        disturbs="; ".join(dict.fromkeys(plan.disturbs for plan in plans if plan.disturbs)),
        note=sentences(*dict.fromkeys(plan.note.removesuffix(".") for plan in plans)),
    )


def _does_the_same(step: Step, other: Step) -> bool:
    if step.argv or step.file is not None:
        return step.argv == other.argv and step.file == other.file
    return step.why == other.why


def is_reboot(step: Step) -> bool:
    """Return whether the step reboots the node."""
    return step.argv == ("systemctl", "reboot")
