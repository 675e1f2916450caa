"""Checks of GPUs as devices: driver, NVML, the bus, and the nearest NIC."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.log_messages import needs_log
from probes.checks.references import DRIVER_README
from probes.checks.wording import at_most, several
from probes.examination import Examination
from probes.gpus import NOT_LISTED, Gpu
from probes.kernel_log import KernelMessage, LogKind
from probes.nvml import NvmlGpu
from probes.plan import Plan, Step, instruction
from probes.platform import in_container
from probes.smi_paths import Smi
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("gpu")
NO_GPU = Evidence("/sys/bus/pci/devices", "no NVIDIA GPU here")
_XIDS = "NVIDIA Xid errors, https://docs.nvidia.com/deploy/xid-errors/index.html"
_OFF_THE_BUS = "fallen off the bus"
_ALL_ONES = "all ones"


def gpus_of(examination: Examination) -> Maybe[tuple[Gpu, ...]]:
    """The node's GPUs."""
    facts = examination.node.gpus
    return facts if isinstance(facts, Unknown) else facts.gpus


def answer_now(examination: Examination, bdfs: Collection[str | None]) -> bool:
    """Whether all of these are GPUs for which NVML answers."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown) or not bdfs:
        return False
    return set(bdfs) <= {gpu.bdf for gpu in gpus if not isinstance(gpu.nvml, Unknown)}


def names_of(gpus: Iterable[Gpu]) -> str:
    """As "GPU0, GPU3 and 2 more"."""
    return several(f"GPU{gpu.index}" for gpu in gpus)


def bdfs_of(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """The functions that a finding marks."""
    return tuple(gpu.bdf for gpu in gpus)


def asked(
    examination: Examination, fact: Callable[[NvmlGpu], Maybe[bool]], source: str
) -> tuple[list[Gpu], Outcome]:
    """The GPUs of which NVML says that it is so, and what to say where there is none."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return [], unsure(f"needs the GPUs: {gpus}")
    chosen: list[Gpu] = []
    missing: Outcome | None = None
    no: list[Evidence] = []
    for gpu in gpus:
        answer = gpu.nvml if isinstance(gpu.nvml, Unknown) else fact(gpu.nvml)
        if isinstance(answer, Unknown):
            missing = unsure(f"needs NVML's answer for GPU{gpu.index}: {answer}")
        elif answer:
            chosen.append(gpu)
        else:
            no.append(Evidence(f"{source} of GPU{gpu.index}", "no"))
    return chosen, missing or passed(*at_most(no) or (NO_GPU,))


def _driver(gpu: Gpu) -> Evidence:
    return Evidence(f"/sys/bus/pci/devices/{gpu.bdf}/driver", known(gpu.driver, "none"))


def _by_driver(examination: Examination, wanted: Callable[[Maybe[str]], bool]) -> Outcome | list[Gpu]:
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    chosen = [gpu for gpu in gpus if wanted(gpu.driver)]
    if chosen:
        return chosen
    for gpu in gpus:
        if isinstance(gpu.driver, Unknown) and gpu.driver.reason is not Reason.NOT_THERE:
            return unsure(f"needs the driver of GPU{gpu.index}: {gpu.driver}")
    return passed(*at_most(_driver(gpu) for gpu in gpus) or (NO_GPU,))


@AREA.check("gpu-without-driver", Severity.CRITICAL, "a GPU on the bus has no driver", DRIVER_README)
def without_driver(examination: Examination) -> Outcome:
    """GPUs that no kernel driver is bound to."""
    chosen = _by_driver(
        examination, lambda driver: isinstance(driver, Unknown) and driver.reason is Reason.NOT_THERE
    )
    if isinstance(chosen, Outcome):
        return chosen
    return found(
        f"{names_of(chosen)}: nvidia is not loaded, does not know this GPU, or gave it up at start",
        *at_most(_driver(gpu) for gpu in chosen),
        fix=Plan(
            "Have the driver take the GPU",
            (
                Step("loads the driver where it is not loaded", ("modprobe", "nvidia")),
                instruction("if it is loaded: look in the kernel log for NVRM lines that name this GPU"),
            ),
        ),
        devices=bdfs_of(chosen),
    )


@AREA.check(
    "gpu-without-driver-nouveau",
    Severity.CRITICAL,
    "a GPU is held by nouveau, which CUDA cannot use",
    DRIVER_README,
)
def nouveau(examination: Examination) -> Outcome:
    """GPUs bound to nouveau or nova."""
    chosen = _by_driver(examination, lambda driver: known(driver, "") in ("nouveau", "nova_core"))
    if isinstance(chosen, Outcome):
        return chosen
    return found(
        f"{names_of(chosen)}: nouveau was loaded before NVIDIA's driver and keeps the GPU",
        *at_most(_driver(gpu) for gpu in chosen),
        fix=Plan(
            "Keep nouveau out",
            (
                instruction("write blacklist nouveau and options nouveau modeset=0 to /etc/modprobe.d"),
                instruction("build the initramfs anew (update-initramfs -u or dracut -f), and reboot"),
            ),
            needs_reboot=True,
            disturbs="every job on this node",
        ),
        devices=bdfs_of(chosen),
    )


@AREA.check(
    "gpu-without-driver-passed-through",
    Severity.NOTE,
    "a GPU is kept for a virtual machine",
    "Linux, Documentation/driver-api/vfio.rst",
)
def passed_through(examination: Examination) -> Outcome:
    """GPUs bound to vfio-pci."""
    chosen = _by_driver(examination, lambda driver: known(driver, "") in ("vfio-pci", "pci-stub"))
    if isinstance(chosen, Outcome):
        return chosen
    return found(
        f"{names_of(chosen)}: this node's own programs cannot use it",
        *at_most(_driver(gpu) for gpu in chosen),
        devices=bdfs_of(chosen),
    )


@AREA.check("xid-79-fell-off-bus", Severity.CRITICAL, "a GPU has fallen off the bus", _XIDS)
def fell_off_the_bus(examination: Examination) -> Outcome:
    """Xid 79 in the kernel log, NVML's "GPU is lost", and configuration space that reads as ones."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    evidence: list[Evidence] = []
    lost: list[str] = []
    answering = [gpu for gpu in gpus if not isinstance(gpu.nvml, Unknown)]
    for gpu in gpus:
        if isinstance(gpu.nvml, Unknown) and _OFF_THE_BUS in gpu.nvml.detail:
            evidence.append(Evidence(f"NVML, GPU{gpu.index}", gpu.nvml.detail))
            lost.append(gpu.bdf)
        space = _config(examination, gpu.bdf)
        if isinstance(space, Unknown) and _ALL_ONES in space.detail:
            evidence.append(Evidence(f"/sys/bus/pci/devices/{gpu.bdf}/config", "ff ff ff ff"))
            lost.append(gpu.bdf)
    log = examination.kernel_log
    told: list[KernelMessage] = []
    if not isinstance(log, Unknown):
        told = [
            one
            for one in log.messages
            if one.kind is LogKind.GPU_LOST or (one.kind is LogKind.XID and one.number == 79)
        ]
        evidence += [Evidence(log.source, one.text) for one in reversed(told)]
    if evidence:
        named = [one.bdf for one in told if one.bdf]
        back = not lost and answer_now(examination, named)
        where = tuple(dict.fromkeys([*lost, *named]))
        return found(
            f"{several(where) or 'a GPU'}: the PCIe link or the power was lost. "
            + ("It answers again, but its jobs are dead" if back else "Its jobs are dead")
            + "; their peers report completion error 12",
            *at_most(evidence),
            fix=Plan(
                "Power-cycle the node",
                (
                    instruction("drain the node and switch it off and on: a reboot is often not enough"),
                    instruction("reseat GPU, riser and cables; replace the GPU where it comes back"),
                ),
                needs_reboot=True,
                disturbs="every job on this node",
            ),
            severity=Severity.WARNING if back else None,
            devices=where,
        )
    if len(answering) == len(gpus):
        return passed(*at_most(Evidence(f"NVML, GPU{gpu.index}", "it answers") for gpu in gpus) or (NO_GPU,))
    if isinstance(log, Unknown):
        return unsure(needs_log(log))
    return passed(Evidence(log.source, "no Xid 79"))


def _config(examination: Examination, bdf: str) -> object:
    facts = examination.config_space
    return None if isinstance(facts, Unknown) else facts.functions.get(bdf)


@AREA.check(
    "gpu-missing-from-nvml",
    Severity.CRITICAL,
    "NVML answers, but not for a GPU that the driver holds",
    "NVIDIA Management Library, https://docs.nvidia.com/deploy/nvml-api/",
)
def missing_from_nvml(examination: Examination) -> Outcome:
    """GPUs bound to the nvidia driver that NVML does not list, or that answer with an error."""
    facts = examination.node.gpus
    if isinstance(facts, Unknown):
        return unsure(f"needs the GPUs: {facts}")
    if facts.driver.nvml is not None and facts.gpus:
        return unsure(f"needs NVML: {facts.driver.nvml}")
    held = [gpu for gpu in facts.gpus if known(gpu.driver, "") == "nvidia"]
    silent = [
        gpu for gpu in held if isinstance(gpu.nvml, Unknown) and gpu.nvml.reason is not Reason.NEEDS_ROOT
    ]
    if silent and in_container(examination.node.platform):
        hidden = [gpu for gpu in silent if isinstance(gpu.nvml, Unknown) and gpu.nvml.detail == NOT_LISTED]
        if hidden == silent:
            return passed(Evidence("NVML", f"{names_of(hidden)}: not given to this container"))
    if silent:
        return found(
            f"{names_of(silent)}: the driver could not start it, or it hangs. CUDA does not see it either",
            *at_most(
                Evidence(f"NVML, {gpu.bdf}", gpu.nvml.detail or gpu.nvml.reason.value)
                for gpu in silent
                if isinstance(gpu.nvml, Unknown)
            ),
            fix=Plan(
                "Find out why",
                (
                    instruction("look in the kernel log for NVRM and Xid lines that name this GPU"),
                    instruction("drain the node, reset the GPU or reboot; replace it where it comes back"),
                ),
                disturbs="every job on this node",
            ),
            devices=bdfs_of(silent),
        )
    for gpu in held:
        if isinstance(gpu.nvml, Unknown):
            return unsure(f"needs NVML's answer for GPU{gpu.index}: {gpu.nvml}")
    return passed(*at_most(Evidence(f"NVML, GPU{gpu.index}", "it answers") for gpu in held) or (NO_GPU,))


_NEAR = (Smi.PIX, Smi.PXB)


@AREA.check(
    "gpu-without-near-nic",
    Severity.WARNING,
    "a GPU has no NIC below its PCIe switch, while others have",
    "NVIDIA NCCL environment variables, NCCL_NET_GDR_LEVEL",
)
def without_near_nic(examination: Examination) -> Outcome:
    """GPUs whose NICs are all beyond a host bridge; those across sockets are another check's."""
    topology = examination.topology
    if not topology.gpus or not topology.nics:
        return passed(Evidence("/sys/bus/pci/devices", "no GPU or no RDMA NIC here"))
    far: list[tuple[str, str]] = []
    near = 0
    for gpu in topology.gpus:
        words = [topology.paths[gpu.id, nic.id].smi for nic in topology.nics]
        if any(word in _NEAR for word in words):
            near += 1
            continue
        if any(isinstance(word, Unknown) for word in words):
            return unsure(f"needs the PCIe path of {gpu.label} to every NIC: this machine does not tell it")
        if any(word in (Smi.PHB, Smi.NODE) for word in words):
            far.append((gpu.id, gpu.label))
    if far and near:
        best = [
            Evidence(f"nvidia-smi topo -m, {label}", str(known(topology.paths[gpu, nic].smi, Smi.SYS).value))
            for gpu, label in far
            for nic in topology.best_nics[gpu][:1]
        ]
        return found(
            f"{several(label for _, label in far)}: NCCL uses GPUDirect RDMA below a switch only (PXB), "
            "unless it is told otherwise. These GPUs then go through host memory or through a neighbour",
            *at_most(best),
            fix=Plan(
                "Bring GPU and NIC together",
                (
                    instruction("move a NIC below the GPU's switch, where the chassis allows it", False),
                    instruction("or measure with NCCL_NET_GDR_LEVEL=PHB in the job", False),
                ),
            ),
            devices=tuple(gpu for gpu, _ in far),
        )
    told = f"{near} of {len(topology.gpus)} GPUs have a NIC below their switch"
    return passed(Evidence("/sys/bus/pci/devices", told))
