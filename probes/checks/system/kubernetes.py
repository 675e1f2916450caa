"""Checks of the GPU Operator and the Network Operator, from the side of the node."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Step, user_plan
from probes.base.unknown import Unknown, is_there
from probes.facts.kernel.modules import ModuleState
from probes.facts.system.kubernetes import DRIVER, DRIVER_MODULES, MOFED, MOFED_READY
from probes.queries.finding import Area, Outcome, found, need, passed
from probes.queries.jobs import GDR_PATHS, usable_paths
from probes.queries.modules import impossible_by_design, ofed_of
from probes.snapshot.examination import Examination

AREA = Area("environment", __package__)


@AREA.warning("k8s-rdma-not-enabled", data_path=True, requires=(impossible_by_design,))
def k8s_rdma_not_enabled(examination: Examination) -> Outcome:
    """Find a driver container without nvidia_peermem if DMA-BUF is not usable."""
    if not need(need(examination.driver_container, DRIVER).driver, DRIVER):
        return passed(Evidence(DRIVER, "no driver container"))
    dmabuf, peermem = (need(path, GDR_PATHS) for path in usable_paths(examination))
    if dmabuf or peermem:
        return passed(Evidence(DRIVER, f"{'DMA-BUF' if dmabuf else 'nvidia-peermem'} is usable"))
    return found(
        "driver.rdma.enabled is false in the ClusterPolicy (the default). Only the proprietary modules need"
        " it.",
        Evidence(DRIVER, "a driver container"),
        Evidence("/sys/module/nvidia_peermem/initstate", "not found"),
        devices=("nvidia_peermem",),
    )


@AREA.critical("k8s-waiting-for-mofed")
def k8s_waiting_for_mofed(examination: Examination) -> Outcome:
    """Find /run/mellanox/drivers without .driver-ready; a note if DMA-BUF is usable."""
    facts = need(examination.driver_container, DRIVER)
    mofed = need(facts.mofed, MOFED)
    is_ready = need(facts.mofed_ready, MOFED)
    if not mofed:
        return passed(Evidence(MOFED, "no MOFED container"))
    if is_ready:
        return passed(Evidence(MOFED_READY, "there"))
    dmabuf, _ = usable_paths(examination)
    show = ("kubectl", "get", "pods", "--all-namespaces", "--selector=nvidia.com/ofed-driver")
    return found(
        "The MOFED pod is failing or still loading. Driver pods print “waiting for mellanox ofed and nvidia"
        " drivers to be installed”.",
        Evidence(MOFED_READY, "not found"),
        fix=user_plan(
            "Check the MOFED pod",
            Step("Show the pod and its state", show, needs_root=False),
            *_with_ofed_of_host(examination),
            disturbs="driver pods, which restart",
        ),
        severity=Severity.NOTE if dmabuf is True else None,
    )


def _with_ofed_of_host(examination: Examination) -> list[str]:
    """Return how the driver pods use the OFED that is installed on the node; nothing if there is none."""
    ofed = ofed_of(examination)
    if is_there(ofed) is False:
        return []
    here = f"the host has {ofed}"
    if isinstance(ofed, Unknown):
        here = f"whether the host has one is unknown ({ofed})"
    return [f"To use the host's OFED, set driver.rdma.useHostMofed=true in the ClusterPolicy: {here}"]


@AREA.warning("k8s-mofed-storage-modules")
def k8s_mofed_storage_modules(examination: Examination) -> Outcome:
    """Find modules of storage over RDMA while the MOFED container is not ready."""
    facts = need(examination.driver_container, DRIVER)
    mofed = need(facts.mofed, MOFED)
    is_ready = need(facts.mofed_ready, MOFED)
    if not mofed or is_ready:
        return passed(Evidence(MOFED, "ready" if mofed else "no MOFED container"))
    modules = need(facts.storage_modules, "the loaded modules")
    if not modules:
        return passed(Evidence("/proc/modules", "no RDMA storage module"))
    return found(
        "The storage modules use the kernel's IB core, so the container cannot unload it.",
        *(Evidence("/proc/modules", name) for name in modules),
        devices=modules,
        part_of=() if usable_paths(examination)[0] is True else ("k8s-waiting-for-mofed",),
    )


@AREA.critical("k8s-peermem-ctr-crashloop", requires=(impossible_by_design,))
def k8s_peermem_ctr_crashloop(examination: Examination) -> Outcome:
    """Find /run/nvidia/driver/lib/modules empty under a loaded driver, with nvidia_peermem not loaded."""
    facts = need(examination.driver_container, DRIVER)
    driver = need(facts.driver, DRIVER)
    modules = need(examination.node.modules, "the loaded modules")
    if not driver:
        return passed(Evidence(DRIVER, "no driver container"))
    states = {name: modules.modules[name].state for name in ("nvidia", "nvidia_peermem")}
    if states["nvidia"] is not ModuleState.LIVE:
        return passed(Evidence("/proc/modules", "nvidia is not loaded"))
    if states["nvidia_peermem"] is ModuleState.LIVE:
        return passed(Evidence("/proc/modules", "nvidia_peermem is loaded"))
    releases = () if is_there(facts.releases) is False else need(facts.releases, DRIVER_MODULES)
    if releases:
        return passed(Evidence(DRIVER_MODULES, ", ".join(releases[:4])))
    dmabuf, _ = usable_paths(examination)
    return found(
        "The container found a loaded driver and installed the libraries only (“performing userspace-only"
        " install”). nvidia-peermem-ctr prints “not found in directory”.",
        Evidence(DRIVER_MODULES, "empty"),
        severity=Severity.NOTE if dmabuf is True else None,
        devices=("nvidia_peermem",),
    )
