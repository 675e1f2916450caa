"""The steps of setup, in order. What is not in this list is not a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from probes.bandwidth.model.request import MemoryPath, Request, Scope
from probes.base.evidence import Evidence, Severity
from probes.base.plan import FileChange, Plan, Step, instruction
from probes.base.text import join_limited, plural
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.checks.judgment import conclude
from probes.facts.gpudirect import GdrPath, hardware_of
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.node import host_name
from probes.facts.system.tool_names import NCCL_TESTS
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.plans.common import reboot_step as reboot_command
from probes.queries.finding import Finding
from probes.setup.env.advice import Advice, lines_of
from probes.setup.env.advice import State as AdviceState
from probes.setup.env.recommend import recommend
from probes.setup.step import BuiltStep, SetupFacts, SetupStep, StepDefinition, StepState
from probes.setup.steps.checked import CheckedStep
from probes.setup.steps.drivers import (
    UNUSABLE_MODULES,
    complete_boot,
    complete_modules,
    gpu_driver_step,
    nic_driver_step,
    with_operators,
)
from probes.setup.steps.measured import CableStep, MeasuredStep, two_node_step
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State


def environment_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done if the defaults fit, or /etc/nccl.conf has what the node needs."""
    examination, step = facts.examination, partial(definition.step, command="gdrtop env")
    advice = recommend(examination, facts.situation.cloud)
    if advice.nothing:
        return step(StepState.BLOCKED, advice.nothing)
    if advice.vendor and not advice.settings:
        reason = f"{advice.vendor}: its own software sets the variables"
        return step(StepState.DONE, reason)
    if not advice.settings:
        open_notes = [note.variable for note in advice.notes if note.state is AdviceState.MEASURE]
        more = f"; {join_limited(open_notes)} may help: measure it first" if open_notes else ""
        return step(StepState.DONE, f"no variable is required{more}")
    evidence = tuple(
        Evidence(f"{setting.name}={setting.value}", setting.reason) for setting in advice.settings
    )
    names = join_limited(setting.name for setting in advice.settings)
    reason = f"{plural(len(advice.settings), 'variable')} to set: {names}"
    plan = None if advice.vendor else _plan(definition.title, examination, advice)
    return step(StepState.TO_DO, reason, evidence, plan)


def _plan(title: str, examination: Examination, advice: Advice) -> Plan | None:
    """Write /etc/nccl.conf if there is none; a file that exists is changed by hand."""
    names = [setting.name for setting in advice.settings if setting.name.startswith("NCCL_")]
    if not names:
        return None
    conf = map_known(examination.processes, lambda facts: facts.nccl_conf)
    if isinstance(conf, Unknown) and conf.reason is Reason.NOT_THERE:
        lines = lines_of(advice, known(host_name(examination.node), "this node"), "nccl-conf")
        change = FileChange(NCCL_CONF, "\n".join(lines) + "\n")
        step = Step(f"Write {', '.join(names)} to {NCCL_CONF}", file=change)
        return Plan(title, (step,), note="Running jobs keep their variables until they restart.")
    steps = (
        instruction(f"Add this line to {NCCL_CONF}: {setting.name}={setting.value}")
        for setting in advice.settings
        if setting.name in names
    )
    return Plan(title, tuple(steps))


# The last steps: the reboot that proves the setup, and the report that hands the node over.

_CONTINUES = "Then open setup again: it continues from here."
# Only showing the steps writes nothing.
_REMEMBER = "First press Enter here, or run gdrtop setup reboot --run: gdrtop then knows this boot."


def reboot_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done in a boot in which gdrtop never saw an open step, after an earlier boot.

    A boot in which something was loaded or set by hand proves nothing, even if the path is usable now.
    """
    boot_id, boots = facts.boot_id, facts.record.boots
    if isinstance(boot_id, Unknown):
        return definition.step(StepState.UNKNOWN, f"the boot ID is unknown: {boot_id}")
    if all(boot == boot_id for boot in boots):
        reason = "not rebooted since setup began"
    elif boots.get(boot_id):
        reason = "not rebooted since the last step was completed"
    else:
        verdict = conclude(facts.examination.usability, tuple(facts.findings.values()))
        if verdict.state.is_usable:
            return definition.step(StepState.DONE, "the path is usable after a reboot")
        reason = f"after the reboot: {verdict.state.value}, {verdict.reason}"
        if verdict.state is State.UNKNOWN:
            return definition.step(StepState.UNKNOWN, reason)
    plan = Plan(
        definition.title,
        (
            instruction("See what the reboot will change: gdrtop forecast", needs_root=False),
            reboot_command("Drain the node, then reboot it"),
        ),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
        note=_CONTINUES if boots else f"{_REMEMBER} {_CONTINUES}",
    )
    return definition.step(StepState.TO_DO, reason, plan=plan)


def report_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done if a report of this node was written."""
    file = facts.record.reported
    state = StepState.DONE if file else StepState.TO_DO
    reason = f"written to {file}" if file else "not written yet"
    return definition.step(state, reason, command="gdrtop report FILE")


HARDWARE, REBOOT = "hardware", "reboot"
_NO_VERBS = "perftest needs verbs, which Slingshot NICs do not have"
_WHOLE_NODE = "no-gdr-path"  # the sum of what the other steps are about


@dataclass(frozen=True, kw_only=True)
class _OtherFindings(CheckedStep):
    """The step for what the doctor found and no other step is about."""

    def findings_of(self, facts: SetupFacts) -> list[Finding]:
        """Return the critical findings and warnings that no other step covers."""
        others = [step for step in STEPS if isinstance(step, CheckedStep)]
        return [
            finding
            for finding in facts.findings.values()
            if finding.is_present
            and finding.severity is not Severity.NOTE
            and finding.id != _WHOLE_NODE
            and finding.part_of not in facts.findings  # it ends with its cause
            and not any(step.covers(finding.id) for step in others)
        ]


def _if_judged(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Leave the other findings unknown while the node cannot be judged."""
    verdict = facts.examination.usability
    if verdict.state is not State.UNKNOWN or step.state is not StepState.DONE:
        return step
    return replace(step, state=StepState.UNKNOWN, reason=f"the node cannot be judged: {verdict.reason}")


def _with_impossibility(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Say why no other step can help where GPUDirect RDMA can never work."""
    if not facts.choice.is_impossible:
        return step
    return replace(step, state=StepState.BLOCKED, reason=facts.choice.reason)


def _with_devices(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Block the ports of a node that has no RDMA device: no check finds fault with them."""
    if hardware_of(facts.examination.node.rdma) or step.state is not StepState.DONE:
        return step
    return replace(step, state=StepState.BLOCKED, reason="no RDMA device exists yet")


def _without_verbs(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Skip perftest on a node with Slingshot NICs, which have no verbs."""
    if facts.path is not GdrPath.CXI:
        return step
    return replace(step, state=StepState.SKIPPED, reason=_NO_VERBS, plan=None)


# fmt: off
STEPS: tuple[StepDefinition, ...] = (
    CheckedStep(HARDWARE, "Check GPUs and NICs",
        "Setup cannot fix a device that is off the bus or does not support GPUDirect RDMA by design.",
        done="GPUs and NICs support GPUDirect RDMA", complete=_with_impossibility, checks=(
            *("geforce-no-gdr", "gpu-too-old-for-gdr", "vgpu-without-gdr", "confidential-computing-on"),
            *("c2c-grace-specifics-gb10", "xid-79-fell-off-bus", "gpu-missing-from-nvml"),
            *("pcie-function-gone", "pcie-config-unreachable", "nic-health-errors"),
        )),
    BuiltStep("nic-driver", "Install the NIC driver",
        "The NIC driver comes first: the NVIDIA driver's nvidia_peermem is built against it.",
        function=nic_driver_step),
    BuiltStep("gpu-driver", "Install the NVIDIA driver",
        "DMA-BUF needs the open kernel modules of driver 515.43.04 (CUDA 11.7) or newer; nvidia_peermem needs"
        " driver 470 (CUDA 11.4) or newer.",
        after=("hardware", "nic-driver"), function=gpu_driver_step),
    CheckedStep("containers", "Set up the Kubernetes operators",
        "Where operators own the drivers, changes on the node itself do not last.",
        done="no operator driver pod reports a problem", notes_count=True, complete=with_operators,
        checks=("k8s-*",)),
    CheckedStep("rival", "Remove nv_peer_mem",
        "nv_peer_mem, the predecessor of nvidia_peermem, keeps nvidia_peermem from loading.",
        done="nv_peer_mem is not installed", notes_count=True, checks=("nv-peer-mem-conflict*",)),
    CheckedStep("build", "Build modules in the right order",
        "nvidia_peermem is built against the NIC driver's ib_core. If the NIC driver is installed or"
        " upgraded afterward, nvidia_peermem has to be rebuilt.",
        after=("nic-driver", "gpu-driver"), judges=("nic-driver", "gpu-driver"),
        done="the modules of this path match the kernel and each other", checks=(
            *("peermem-built-without-symbols", "peermem-symbol-version-mismatch*", "peermem-not-on-disk*"),
            *("peermem-unknown-symbol-inbox-core", "inbox-core-beside-ofed", "dkms-*"),
            *("driver-half-updated", "driver-library-mismatch", "driver-library-missing"),
            *(*UNUSABLE_MODULES, "module-wrong-*"),
            *("efa-peermem-*", "cxi-without-gpu-support", "gsp-firmware-missing", "driver-upgrade-blocked"),
        )),
    CheckedStep("signatures", "Let the kernel trust the modules",
        "With Secure Boot, the kernel loads only modules signed with a key it trusts.",
        after=("gpu-driver", "build"), judges=("gpu-driver",),
        done="the kernel accepts the modules of this path",
        checks=("secure-boot-*", "kernel-forbids-modules-lockdown")),
    CheckedStep("modules", "Load the modules",
        "Without these modules and their device files no NIC can reach GPU memory.",
        after=("nic-driver", "gpu-driver", "rival", "build", "signatures"),
        done="all modules of the path are loaded", complete=complete_modules, checks=(
            *("ib-core-not-loaded", "mlx4-core-not-loaded", "mlx4-ib-not-loaded", "mlx5-core-not-loaded"),
            *("mlx5-ib-not-loaded", "ib-uverbs-not-loaded", "nvidia-not-loaded", "nvidia-uvm-not-loaded"),
            *("efa-not-loaded", "cxi-ss1-not-loaded", "cxi-user-not-loaded"),
            *("peermem-not-loaded", "module-blacklisted*", "kernel-forbids-modules-disabled"),
            *("nic-without-driver*", "nic-without-rdma-device"),
            *("gpu-without-driver*", "gpu-driver-start-failed", "dev-*"),
        )),
    CheckedStep("peermem-parameters", "Set nvidia_peermem's parameters",
        "Wrong parameters make nvidia_peermem fail with the installed NIC driver.",
        done="nvidia_peermem has the right parameters", only=GdrPath.PEERMEM,
        checks=("peermem-parameter-*",)),
    CheckedStep("dmabuf", "Meet the requirements of DMA-BUF",
        "DMA-BUF needs the open GPU kernel modules and a NIC driver that registers DMA-BUFs.",
        after=("gpu-driver", "modules"), judges=("gpu-driver", "modules"),
        done="kernel, driver and NICs support DMA-BUF", only=GdrPath.DMABUF,
        checks=("dmabuf-*", "p2p-*", "data-direct-unavailable")),
    CheckedStep("fabric", "Start the NVLink services",
        "With NVSwitch, CUDA starts only after Fabric Manager (on B200 and B300 also NVLSM and ib_umad);"
        " rack-scale NVLink needs IMEX.",
        after=("gpu-driver", "modules"), done="NVLink services are running, or none are needed",
        checks=(
            *("fabric-manager-down*", "gpu-fabric-*", "nvlsm-*", "ib-umad-missing", "imex-*", "nvlink-down"),
        )),
    CheckedStep("iommu", "Set the IOMMU to passthrough",
        "A translating IOMMU slows or breaks traffic between NIC and GPU.",
        done="the IOMMU does not translate NIC requests",
        checks=("iommu-translated", "vm-without-p2p*")),
    CheckedStep("acs", "Disable ACS redirects",
        "ACS redirects send traffic between GPU and NIC up to the CPU and back.",
        after=("iommu",), judges=("iommu",), done="no switch redirects GPU–NIC traffic",
        checks=("acs-*",)),
    CheckedStep("pcie", "Check PCIe links and placement",
        "A narrow or slow PCIe link limits every transfer over it.",
        done="links, read requests and BARs are ok", checks=(
            *("pcie-link-*", "pcie-devctl-*", "pcie-aspm-on", "bar1-too-small"),
            *("pcie-aer-*", "pcie-error-unreported"),
        )),
    CheckedStep("ports", "Bring up the ports",
        "A port that is down or has no usable GID carries no RDMA traffic. A slow one limits its GPUs.",
        after=("nic-driver",), done="all ports are active at full rate", complete=_with_devices,
        checks=(
            *("ib-port-not-active*", "link-layer-wrong", "rate-shown-as-sdr", "single-rail-*"),
            *("roce-gid-wrong*", "roce-lossless-off", "roce-bond-port-down", "roce-rails-one-subnet"),
            *("roce-rp-filter-strict", "mtu-mismatch*", "nic-firmware-mismatch"),
        )),
    CheckedStep("memlock", "Allow jobs to lock memory",
        "RDMA registers locked memory. With the usual limit of a login or a service, registration fails.",
        done="jobs can lock as much memory as they need", checks=("memlock-*",)),
    CheckedStep("nccl", "Check NCCL and its settings",
        "One wrong variable can disable GPUDirect RDMA on a healthy node.",
        done="no NCCL setting prevents GPUDirect RDMA", checks=(
            *("nccl-*", "cuda-older-than-gpu", "ucx-*", "nvshmem-*"),
            *("rdma-core-without-dmabuf", "old-userspace-abi", "libibverbs-missing"),
        )),
    BuiltStep("environment", "Set the NCCL environment",
        "Where NCCL's defaults miss a NIC or a path, jobs silently fall back to slower ones.",
        is_possible_in_container=True, function=environment_step),
    CheckedStep("boot", "Load everything at boot",
        "Modules that were loaded by hand are gone after a reboot.",
        after=("modules",), judges=("modules",), done="the next boot loads the same modules",
        notes_count=True, complete=complete_boot, checks=(
            *("peermem-not-persistent", "peermem-unneeded-at-boot", "peermem-lost-after-driver-update"),
            *("boot-load-race", "initramfs-stale", "persistence-off*"),
        )),
    CheckedStep("tools", "Install the benchmark tools",
        "Without perftest the path to GPU memory cannot be measured.",
        done="perftest is installed and supports GPU memory", notes_count=True,
        complete=_without_verbs, checks=("perftest-*", "libcuda-link-missing")),
    MeasuredStep("measure-host", "Measure a NIC with host memory",
        "Host memory shows what the NIC and its link can do, without a GPU.",
        after=("modules", "ports"), request=Request(memory=MemoryPath.HOST)),
    MeasuredStep("measure-pair", "Measure one GPU and its NIC",
        "GPU memory must be as fast as host memory over the same NIC; if not, traffic is staged or"
        " detours.",
        after=("modules", "fabric", "tools", "measure-host"),
        request=Request(memory=MemoryPath.COMPARE)),
    MeasuredStep("measure-staged", "Measure the staged path",
        "Shows what jobs lose without GPUDirect RDMA, when data is copied through host memory.",
        after=("modules", "fabric", "measure-host"), is_possible_in_container=False,
        request=Request(tool=NCCL_TESTS[0], over_network=True, memory=MemoryPath.COMPARE),
        is_optional=True),
    MeasuredStep("measure-all", "Measure every GPU with its NIC",
        "One slow pair slows every job on this node.",
        after=("measure-pair",), request=Request(scope=Scope.SWEEP)),
    _OtherFindings("others", "Resolve the other findings",
        "A node that is set up can still have a fault that slows jobs down.",
        done="the doctor has no other critical finding or warning", complete=_if_judged, checks=()),
    BuiltStep(REBOOT, "Reboot and check again",
        "Only a reboot proves that the setup lasts.",
        after=("modules", "fabric", "iommu", "acs", "boot"), is_scripted=False, function=reboot_step),
    BuiltStep("report", "Write the report",
        "For a handover, it lists the verdict, bandwidth, changes and how to undo them.",
        after=("measure-all", "reboot"), is_possible_in_container=True, is_scripted=False,
        function=report_step),
    CableStep("cable-pair", "Measure a pair across the cable",
        "Loopback shows nothing about cable, switch and peer.",
        after=("measure-pair",), request=Request(),
        command="gdrtop bench --ssh root@NODE2 (or gdrtop bench --serve there: it prints what to run here)"),
    CableStep("cable-rails", "Measure rails across the cable",
        "One bad cable or switch port slows every job that spans nodes.",
        after=("measure-all", "cable-pair"), request=Request(scope=Scope.SWEEP),
        command="gdrtop bench --sweep --ssh root@NODE2 (many nodes: gdrtop fleet bench)"),
    BuiltStep("cable-nccl", "Run NCCL on two nodes",
        "Only a job on two nodes shows which path NCCL chooses between them.",
        after=("cable-rails",), is_possible_in_container=True, is_scripted=False,
        function=two_node_step),
)
# fmt: on


def definition_of(id_: str) -> StepDefinition:
    """Return the definition of a step by its id."""
    return next(step for step in STEPS if step.id == id_)


def check_steps(steps: Iterable[StepDefinition]) -> None:
    """Raise ValueError for an id that occurs twice, or an `after` that is not the id of an earlier step."""
    earlier: set[str] = set()
    for step in steps:
        if step.id in earlier:
            raise ValueError(f"two steps have the id {step.id!r}")
        for name in step.after:
            if name not in earlier:
                raise ValueError(f"{step.id!r} comes after {name!r}, which is not an earlier step")
        earlier.add(step.id)


check_steps(STEPS)
