"""What the paths of AWS EFA and HPE Slingshot require; neither uses nvidia_peermem or OFED."""

from __future__ import annotations

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, any_of, known
from probes.facts.gpu.gpus import Flavor, GpuFacts
from probes.facts.gpudirect import GdrPath, GpuSupport, Requirement
from probes.facts.rdma.devices import RdmaDevice
from probes.host.protocol import Host

EFA_PEERMEM = "efa_nv_peermem"
# cass_nvidia_gpu.c: exists only in a driver that was built with NVIDIA's headers.
CXI_GPU_PARAMETER = "/sys/module/cxi_ss1/parameters/nv_p2p_persistent"
_CXI_MODULES = ("cxi_ss1", "cxi_user")


def is_live(host: Host, module: str) -> Maybe[bool]:
    """Return whether a module is loaded now."""
    state = host.read(f"/sys/module/{module}/initstate", 64)
    if isinstance(state, Unknown):
        return False if state.reason is Reason.NOT_THERE else state
    return state == "live"


def efa_requirement(host: Host, device: RdmaDevice) -> Requirement:
    """Return whether EFA's own peer memory works.

    The driver says so in `p2p`, older ones in `gdr`, the oldest not at all (amzn-drivers, efa_sysfs.c). `p2p`
    names the provider, "NVIDIA"; it is empty, and `gdr` is 0, if the driver finds no NVIDIA symbols.
    """
    name, base = "EFA's peer memory", f"{device.sysfs_path}/device"
    provider, built = host.read(f"{base}/p2p", 64), host.read(f"{base}/gdr", 64)
    lack = f"{device.name} finds no NVIDIA peer memory ({EFA_PEERMEM})"
    if not isinstance(provider, Unknown):
        evidence = f"{base}/p2p: {printable(provider, 40) or 'empty'}"
        return Requirement(name, provider.startswith("NVIDIA"), evidence, lack)
    if not isinstance(built, Unknown) and built in ("0", "1"):
        return Requirement(name, built == "1", f"{base}/gdr: {built}", lack)
    live = is_live(host, EFA_PEERMEM)
    word = str(live) if isinstance(live, Unknown) else "live" if live else "not loaded"
    return Requirement(name, live, f"/sys/module/{EFA_PEERMEM}: {word}", f"{EFA_PEERMEM} is not loaded")


def cxi_requirements(
    host: Host, gpus: Maybe[GpuFacts], support: dict[str, GpuSupport]
) -> tuple[Requirement, ...]:
    """Return what GPUDirect RDMA requires on Slingshot: the driver's modules, and a way to GPU memory.

    libfabric's cxi provider hands DMA-BUF files to the driver, which else asks NVIDIA's P2P interface itself
    (shs-cxi-driver, cass_dma_buf.c and cass_nvidia_gpu.c). The first needs NVIDIA's open kernel modules, the
    second a driver that was built with NVIDIA's headers.
    """
    rows = [_loaded(host, name) for name in _CXI_MODULES]
    nvidia = is_live(host, "nvidia")
    word = str(nvidia) if isinstance(nvidia, Unknown) else "live" if nvidia else "not loaded"
    lack = "the NVIDIA driver is not loaded"
    rows.append(Requirement("the NVIDIA driver loaded", nvidia, f"/sys/module/nvidia: {word}", lack))
    rows.append(_gpu_memory(host, gpus))
    return (*rows, *_of_gpus(support))


def _loaded(host: Host, name: str) -> Requirement:
    live = is_live(host, name)
    word = str(live) if isinstance(live, Unknown) else "live" if live else "not loaded"
    return Requirement(f"{name} loaded", live, f"/sys/module/{name}: {word}", f"{name} is not loaded")


def _gpu_memory(host: Host, gpus: Maybe[GpuFacts]) -> Requirement:
    """Return whether the driver can reach GPU memory by P2P or by DMA-BUF."""
    name = "a cxi driver with P2P, or open NVIDIA kernel modules"
    parameter = host.read(CXI_GPU_PARAMETER, 64)
    flavor = gpus if isinstance(gpus, Unknown) else gpus.driver.flavor
    is_open: Maybe[bool] = flavor if isinstance(flavor, Unknown) else flavor is Flavor.OPEN
    has_p2p: Maybe[bool] = True
    if isinstance(parameter, Unknown):
        has_p2p = False if parameter.reason is Reason.NOT_THERE else parameter
    if has_p2p is True:
        return Requirement(name, True, f"{CXI_GPU_PARAMETER}: {printable(known(parameter, ''), 8)}")
    evidence = f"{CXI_GPU_PARAMETER}: {parameter}"
    if is_open is True:
        evidence = "/proc/driver/nvidia/version: open kernel modules, for DMA-BUF"
    lack = "cxi_ss1 was built without NVIDIA's P2P interface, and DMA-BUF needs the open kernel modules"
    return Requirement(name, any_of((has_p2p, is_open)), evidence, lack)


def _of_gpus(support: dict[str, GpuSupport]) -> list[Requirement]:
    """Return whether a GPU supports either interface; nothing if all do."""
    answers = {bdf: any_of((gpu.peermem, gpu.dmabuf)) for bdf, gpu in support.items()}
    if not answers or all(answer is True for answer in answers.values()):
        return []
    first = next(support[bdf] for bdf, answer in answers.items() if answer is not True)
    met = any_of(answers.values())
    return [Requirement(f"GPUs that support {GdrPath.CXI.value}", met, first.evidence, first.reason)]
