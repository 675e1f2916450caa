"""What the GPU Operator and the Network Operator have left undone, as the node shows it."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.nccl_library import usable
from probes.driver_container import DRIVER, DRIVER_MODULES, MOFED, MOFED_READY
from probes.examination import Examination
from probes.modules import ModuleState
from probes.plan import Plan, Step, instruction
from probes.unknown import Reason, Unknown

AREA = Area("environment")
_OPERATOR = "NVIDIA GPU Operator, https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html"


@AREA.check(
    "k8s-rdma-not-enabled",
    Severity.WARNING,
    "the driver container does not load nvidia-peermem, and DMA-BUF cannot be used",
    _OPERATOR,
)
def k8s_rdma_not_enabled(examination: Examination) -> Outcome:
    """A driver container, no nvidia_peermem, and no DMA-BUF; with DMA-BUF the setting is right."""
    facts = examination.driver_container
    driver = facts if isinstance(facts, Unknown) else facts.driver
    if isinstance(driver, Unknown):
        return unsure(f"{driver.reason.value}: {DRIVER}")
    if not driver:
        return passed(Evidence(DRIVER, "no driver container here"))
    dmabuf, peermem = usable(examination)
    for fact in (dmabuf, peermem):
        if isinstance(fact, Unknown):
            return unsure(f"which way this node can use: {fact}")
    if dmabuf or peermem:
        return passed(Evidence(DRIVER, f"{'DMA-BUF' if dmabuf else 'nvidia-peermem'} can be used"))
    return found(
        "driver.rdma.enabled of the ClusterPolicy is false, its default; it is needed with closed kernel"
        " modules only",
        Evidence(DRIVER, "a driver container"),
        Evidence("/sys/module/nvidia_peermem/initstate", "not there"),
        fix=Plan(
            "Change the ClusterPolicy",
            (
                instruction(
                    "driver.kernelModuleType=open, by which DMA-BUF works; or driver.rdma.enabled=true"
                ),
                Step("looks at it", ("kubectl", "get", "clusterpolicy", "--output=yaml"), needs_root=False),
            ),
            disturbs="driver pods restart and the node is drained: every GPU job ends",
        ),
        devices=("nvidia_peermem",),
    )


@AREA.check(
    "k8s-waiting-for-mofed",
    Severity.CRITICAL,
    "the MOFED container is not ready, and GPU driver pods wait for it",
    "https://github.com/NVIDIA/gpu-operator/issues/448",
)
def k8s_waiting_for_mofed(examination: Examination) -> Outcome:
    """/run/mellanox/drivers without .driver-ready; a note where DMA-BUF works all the same."""
    facts = examination.driver_container
    if isinstance(facts, Unknown):
        return unsure(f"driver containers: {facts}")
    if isinstance(facts.mofed, Unknown) or isinstance(facts.mofed_ready, Unknown):
        return unsure(f"needs root: {MOFED}")
    if not facts.mofed:
        return passed(Evidence(MOFED, "no MOFED container here"))
    if facts.mofed_ready:
        return passed(Evidence(MOFED_READY, "there"))
    dmabuf, _ = usable(examination)
    return found(
        "its pod is not ready or is failing; driver pods say “waiting for mellanox ofed and nvidia drivers"
        " to be installed”",
        Evidence(MOFED_READY, "not there"),
        fix=Plan(
            "Look at the MOFED pod",
            (
                Step(
                    "names the pod and its state",
                    ("kubectl", "get", "pods", "--all-namespaces", "--selector=nvidia.com/ofed-driver"),
                    needs_root=False,
                ),
                instruction(
                    "where the host has OFED of its own: driver.rdma.useHostMofed=true in the ClusterPolicy",
                    needs_root=False,
                ),
            ),
            disturbs="driver pods restart",
        ),
        severity=Severity.NOTE if dmabuf is True else None,
    )


@AREA.check(
    "k8s-mofed-storage-modules",
    Severity.WARNING,
    "storage modules keep the MOFED container from loading its drivers",
    "https://github.com/NVIDIA/gpu-operator/issues/588",
)
def k8s_mofed_storage_modules(examination: Examination) -> Outcome:
    """Modules of storage over RDMA while the MOFED container is not ready."""
    facts = examination.driver_container
    if isinstance(facts, Unknown):
        return unsure(f"driver containers: {facts}")
    for fact in (facts.mofed, facts.mofed_ready):
        if isinstance(fact, Unknown):
            return unsure(f"needs root: {MOFED}")
    if not facts.mofed or facts.mofed_ready:
        return passed(Evidence(MOFED, "ready" if facts.mofed else "no MOFED container here"))
    if isinstance(facts.storage_modules, Unknown):
        return unsure(f"the loaded modules: {facts.storage_modules}")
    if not facts.storage_modules:
        return passed(Evidence("/proc/modules", "no module of storage over RDMA"))
    return found(
        "they use the IB core of the kernel, which therefore cannot be replaced",
        *(Evidence("/proc/modules", name) for name in facts.storage_modules),
        fix=Plan(
            "Let the container unload them",
            (instruction("UNLOAD_STORAGE_MODULES=true in the NicClusterPolicy", needs_root=False),),
            disturbs="storage that is mounted over RDMA is cut off: unmount it first",
        ),
        devices=facts.storage_modules,
    )


@AREA.check(
    "k8s-peermem-ctr-crashloop",
    Severity.CRITICAL,
    "the driver container has no module files: its nvidia-peermem container cannot load the module",
    "https://github.com/NVIDIA/gpu-operator/issues/2619",
)
def k8s_peermem_ctr_crashloop(examination: Examination) -> Outcome:
    """/run/nvidia/driver/lib/modules empty under a loaded driver, with nvidia_peermem not loaded."""
    facts, modules = examination.driver_container, examination.node.modules
    driver = facts if isinstance(facts, Unknown) else facts.driver
    if isinstance(facts, Unknown) or isinstance(driver, Unknown) or isinstance(modules, Unknown):
        return unsure(f"needs root: {DRIVER}" if isinstance(driver, Unknown) else f"the modules: {modules}")
    if not driver:
        return passed(Evidence(DRIVER, "no driver container here"))
    states = {name: modules.modules[name].state for name in ("nvidia", "nvidia_peermem")}
    if states["nvidia"] is not ModuleState.LIVE:
        return passed(Evidence("/proc/modules", "nvidia is not loaded"))
    if states["nvidia_peermem"] is ModuleState.LIVE:
        return passed(Evidence("/proc/modules", "nvidia_peermem is loaded, whatever its pod says"))
    if isinstance(facts.releases, Unknown) and facts.releases.reason is not Reason.NOT_THERE:
        return unsure(f"{facts.releases.reason.value}: {DRIVER_MODULES}")
    if not isinstance(facts.releases, Unknown) and facts.releases:
        return passed(Evidence(DRIVER_MODULES, ", ".join(facts.releases[:4])))
    dmabuf, _ = usable(examination)
    return found(
        "the container found a driver loaded and installed the libraries only (“performing userspace-only"
        " install”); nvidia-peermem-ctr says “not found in directory” over and over",
        Evidence(DRIVER_MODULES, "empty"),
        fix=Plan(
            "Let the driver pod install its modules",
            (
                instruction(
                    "a newer driver image, or drain the node and reboot it; with open kernel modules rather"
                    " driver.rdma.enabled=false"
                ),
            ),
            needs_reboot=True,
            disturbs="the node is drained: every GPU job ends",
        ),
        severity=Severity.NOTE if dmabuf is True else None,
        devices=("nvidia_peermem",),
    )
