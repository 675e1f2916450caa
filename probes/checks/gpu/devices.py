"""Checks of GPUs as devices: driver, NVML, the bus, and the nearest NIC."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import make_plan
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, is_there, known, map_known
from probes.facts.gpu.gpus import NOT_LISTED, Gpu
from probes.facts.kernel.log import KernelMessage, LogKind
from probes.facts.pci.functions import is_for_guests
from probes.facts.system.platform import in_container
from probes.host.nvml import NvmlGpu
from probes.live.events.gpus import OFF_THE_BUS
from probes.plans.boot import initramfs_step
from probes.plans.common import reboot_plan, reboot_step
from probes.plans.load_modules import bind_steps
from probes.queries.finding import KERNEL_LOG, Area, Outcome, end_with, found, need, needs, passed, unknown
from probes.queries.modules import driver_evidence, impossible_by_design
from probes.queries.pcie_paths import config_of
from probes.snapshot.examination import Examination
from probes.topology.hops import BELOW_SWITCH, Smi
from probes.topology.nccl_paths import NEAR, Nccl
from probes.topology.paths import Topology

AREA = Area("gpu", __package__)
T = TypeVar("T")
NO_GPU = Evidence("/sys/bus/pci/devices", "no NVIDIA GPU here")
GPUS = "the GPUs"
LOST_GPU, GSP_TIMEOUT = "xid-79-fell-off-bus", "xid-119-gsp-timeout"


def gpus_of(examination: Examination) -> Maybe[tuple[Gpu, ...]]:
    """Return the node's GPUs."""
    return map_known(examination.node.gpus, lambda facts: facts.gpus)


def need_gpus(examination: Examination) -> tuple[Gpu, ...]:
    """Return the node's GPUs, or end the check as unknown."""
    return need(gpus_of(examination), GPUS)


def need_nvml(gpu: Gpu, fact: Maybe[T]) -> T:
    """Return a fact that NVML reports about a GPU, or end the check as unknown."""
    return need(fact, f"NVML for GPU{gpu.index}")


def answer_now(examination: Examination, bdfs: Collection[str | None]) -> bool:
    """Say whether NVML answers for all of these GPUs."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown) or not bdfs:
        return False
    return set(bdfs) <= {gpu.bdf for gpu in gpus if not isinstance(gpu.nvml, Unknown)}


def names_of(gpus: Iterable[Gpu]) -> str:
    """Return names such as "GPU0, GPU3 and 2 more"."""
    return join_limited(f"GPU{gpu.index}" for gpu in gpus)


def bdfs_of(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the PCI functions of the GPUs."""
    return tuple(gpu.bdf for gpu in gpus)


def gpus_with(examination: Examination, fact: Callable[[NvmlGpu], Maybe[bool]], source: str) -> list[Gpu]:
    """Return the GPUs for which a fact from NVML is true; without any, end the check."""
    chosen: list[Gpu] = []
    missing: Outcome | None = None
    others: list[Evidence] = []
    for gpu in need_gpus(examination):
        answer = map_known(gpu.nvml, fact)
        if isinstance(answer, Unknown):
            missing = missing or unknown(needs_nvml(gpu, answer))
        elif answer:
            chosen.append(gpu)
        else:
            others.append(Evidence(f"{source}, GPU{gpu.index}", "no"))
    if not chosen:
        end_with(missing or passed(*first_n(others) or (NO_GPU,)))
    return chosen


def needs_nvml(gpu: Gpu, why: Unknown) -> str:
    """Return what a check needs if NVML does not answer for a GPU."""
    return needs(f"NVML for GPU{gpu.index}", why)


def _by_driver(examination: Examination, wanted: Callable[[Maybe[str]], bool]) -> list[Gpu]:
    """Return the GPUs with a driver that is wanted; without any, end the check."""
    gpus = need_gpus(examination)
    chosen = [gpu for gpu in gpus if wanted(gpu.driver)]
    if not chosen:
        for gpu in gpus:
            need(first_unread((gpu.driver,)), f"the driver of GPU{gpu.index}")
        end_with(passed(*first_n(driver_evidence(gpu) for gpu in gpus) or (NO_GPU,)))
    return chosen


@AREA.critical("gpu-without-driver", part_of=("nvidia-not-loaded",))
def gpu_without_driver(examination: Examination) -> Outcome:
    """Find GPUs without a kernel driver."""
    chosen = _by_driver(examination, lambda driver: is_there(driver) is False)
    return found(
        f"{names_of(chosen)}: nvidia is not loaded, does not support this GPU, or could not initialize it.",
        *first_n(driver_evidence(gpu) for gpu in chosen),
        fix=make_plan("Let the driver bind to the GPU", *bind_steps(examination, "nvidia", bdfs_of(chosen))),
        devices=bdfs_of(chosen),
    )


@AREA.critical("gpu-without-driver-nouveau")
def gpu_without_driver_nouveau(examination: Examination) -> Outcome:
    """Find GPUs bound to nouveau or nova."""
    chosen = _by_driver(examination, lambda driver: known(driver, "") in ("nouveau", "nova_core"))
    return found(
        f"{names_of(chosen)}: nouveau was loaded before the NVIDIA driver.",
        *first_n(driver_evidence(gpu) for gpu in chosen),
        fix=reboot_plan(
            "Blacklist nouveau",
            "Write the lines “blacklist nouveau” and “options nouveau modeset=0” to a file in"
            " /etc/modprobe.d",
            initramfs_step(examination),
            reboot_step(),
        ),
        devices=bdfs_of(chosen),
    )


@AREA.note("gpu-without-driver-passed-through")
def gpu_without_driver_passed_through(examination: Examination) -> Outcome:
    """Find GPUs bound to a driver that passes them to virtual machines."""
    chosen = _by_driver(examination, is_for_guests)
    return found(
        f"{names_of(chosen)}: bound to a driver that passes the GPU to a virtual machine.",
        *first_n(driver_evidence(gpu) for gpu in chosen),
        devices=bdfs_of(chosen),
    )


@AREA.critical(LOST_GPU)
def xid_79_fell_off_bus(examination: Examination) -> Outcome:
    """Look for Xid 79, NVML's "GPU is lost", and configuration space that reads as ones."""
    gpus = need_gpus(examination)
    evidence: list[Evidence] = []
    lost: list[str] = []
    for gpu in gpus:
        if isinstance(gpu.nvml, Unknown) and OFF_THE_BUS in gpu.nvml.detail:
            evidence.append(Evidence(f"NVML, GPU{gpu.index}", gpu.nvml.detail))
            lost.append(gpu.bdf)
        space = config_of(examination, gpu.bdf)
        if isinstance(space, Unknown) and "all ones" in space.detail:
            evidence.append(Evidence(f"/sys/bus/pci/devices/{gpu.bdf}/config", "ff ff ff ff"))
            lost.append(gpu.bdf)
    log = examination.kernel_log
    messages: list[KernelMessage] = []
    if not isinstance(log, Unknown):
        messages = [
            message
            for message in log.messages
            if message.kind is LogKind.GPU_LOST or (message.kind is LogKind.XID and message.number == 79)
        ]
        evidence += [Evidence(log.source, message.text) for message in reversed(messages)]
    if evidence:
        named = [message.bdf for message in messages if message.bdf]
        back = not lost and answer_now(examination, named)
        where = tuple(dict.fromkeys([*lost, *named]))
        return found(
            f"{join_limited(where) or 'a GPU'}: the GPU lost its PCIe link or its power."
            + (" It responds again." if back else ""),
            *first_n(evidence),
            severity=Severity.WARNING if back else None,
            impact="Jobs that ran on this GPU are dead." if back else "",
            devices=where,
            takes=() if back else where,
        )
    if not any(isinstance(gpu.nvml, Unknown) for gpu in gpus):
        return passed(*first_n(Evidence(f"NVML, GPU{gpu.index}", "responds") for gpu in gpus) or (NO_GPU,))
    return passed(Evidence(need(log, KERNEL_LOG).source, "no Xid 79"))


@AREA.critical("gpu-missing-from-nvml", part_of=(LOST_GPU, GSP_TIMEOUT, "gpu-driver-start-failed"))
def gpu_missing_from_nvml(examination: Examination) -> Outcome:
    """Find GPUs with the nvidia driver that NVML does not list or that answer with an error."""
    facts = need(examination.node.gpus, GPUS)
    if facts.unplaced:
        return unknown(f"needs /sys (the driver lists {len(facts.unplaced)} GPUs, /sys shows none)")
    if facts.driver.nvml is not None and facts.gpus:
        return unknown(needs("NVML", facts.driver.nvml))
    driven = [gpu for gpu in facts.gpus if known(gpu.driver, "") == "nvidia"]
    silent = [
        gpu for gpu in driven if isinstance(gpu.nvml, Unknown) and gpu.nvml.reason is not Reason.NEEDS_ROOT
    ]
    if silent and in_container(examination.node.platform):
        hidden = [gpu for gpu in silent if isinstance(gpu.nvml, Unknown) and gpu.nvml.detail == NOT_LISTED]
        if hidden == silent:
            return passed(Evidence("NVML", f"{names_of(hidden)} not passed into this container"))
    if silent:
        return found(
            f"{names_of(silent)}: the driver could not initialize the GPU, or the GPU is hung.",
            *first_n(
                Evidence(f"NVML, {gpu.bdf}", gpu.nvml.detail or gpu.nvml.reason.value)
                for gpu in silent
                if isinstance(gpu.nvml, Unknown)
            ),
            devices=bdfs_of(silent),
        )
    for gpu in driven:
        need_nvml(gpu, gpu.nvml)
    need(first_unread(gpu.driver for gpu in facts.gpus), "the GPUs' drivers")
    return passed(*first_n(Evidence(f"NVML, GPU{gpu.index}", "responds") for gpu in driven) or (NO_GPU,))


def _words(topology: Topology, gpu: str) -> dict[str, Maybe[Nccl] | Maybe[Smi]]:
    """Return nvidia-smi's word for the path to each NIC; NCCL's where nvidia-smi does not see the path."""
    paths = {nic.id: topology.paths[gpu, nic.id] for nic in topology.nics}
    return {
        nic: path.nccl_pcie if topology.file is not None or path.by_data_direct else path.smi
        for nic, path in paths.items()
    }


@AREA.warning("gpu-without-near-nic", data_path=True, requires=(impossible_by_design,))
def gpu_without_near_nic(examination: Examination) -> Outcome:
    """Find GPUs whose NICs are all beyond a host bridge; those across sockets are another check's."""
    topology = examination.topology
    need(first_unread((examination.node.rdma,)), "the RDMA devices")
    if not topology.gpus or not topology.nics:
        return passed(Evidence("/sys/bus/pci/devices", "no GPU or no RDMA NIC here"))
    far: list[tuple[str, str]] = []
    near = 0
    source = "nvidia-smi topo -m" if topology.file is None else topology.file.path
    for gpu in topology.gpus:
        words = _words(topology, gpu.id).values()
        if any(word in (*NEAR, *BELOW_SWITCH) for word in words):
            near += 1
            continue
        if any(isinstance(word, Unknown) for word in words):
            return unknown("needs the PCIe paths between GPUs and NICs, which this machine does not show")
        if any(word in (Nccl.PHB, Smi.PHB, Smi.NODE) for word in words):
            far.append((gpu.id, gpu.label))
    if far and near:
        best = [
            Evidence(f"{source}, {label}", known(_words(topology, gpu)[nic], Smi.SYS).value)
            for gpu, label in far
            for nic in topology.best_nics[gpu][:1]
        ]
        return found(
            f"{join_limited(label for _, label in far)}: the nearest NIC is behind a host bridge. By default "
            "NCCL uses GPUDirect RDMA only below a common PCIe switch (PXB).",
            *first_n(best),
            devices=tuple(gpu for gpu, _ in far),
        )
    shown = f"{near} of {len(topology.gpus)} GPUs have a NIC below their switch"
    return passed(Evidence("/sys/bus/pci/devices", shown))
