"""Facts for the tests of GPUDirect's probe."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import DriverFacts, Flavor, Gpu, GpuFacts, fabric_of
from probes.facts.gpudirect import GpuDirectFacts, PathState
from probes.facts.gpudirect_probe import probe
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import KernelModule, ModuleFacts, ModuleState, SymbolProvider
from probes.facts.kernel.release import KernelFacts
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.host.machine.local import LocalHost

ABSENT = Unknown(Reason.NOT_THERE, "absent")
DENIED = Unknown(Reason.NEEDS_ROOT, "/dev/infiniband/uverbs0")
LIVE, BUILTIN, NOT_LOADED = ModuleState.LIVE, ModuleState.BUILTIN, ModuleState.NOT_LOADED


class Nics(LocalHost):
    """A tree whose NICs answer the ibv_reg_dmabuf_mr probe."""

    def __init__(self, root: Path, answers: Maybe[int] | dict[str, Maybe[int]]) -> None:
        super().__init__(str(root))
        self.answers = answers
        self.asked: list[str] = []

    def dmabuf_errnos(self, devices: Sequence[str]) -> dict[str, Maybe[int]]:
        self.asked.extend(devices)
        if isinstance(self.answers, dict):
            return {device: self.answers[device] for device in devices}
        return dict.fromkeys(devices, self.answers)


def a_kernel(release: str = "6.8.0-45-generic", dmabuf: Maybe[bool] = True) -> KernelFacts:
    major, minor = (int(part) for part in release.split(".")[:2])
    return KernelFacts(release, (major, minor), "", False, "none", False, False, dma_shared_buffer=dmabuf)


def a_driver(flavor: Maybe[Flavor] = Flavor.OPEN, version: Maybe[str] = "570.124.06") -> DriverFacts:
    return DriverFacts(version, flavor, {}, "12.8", None)


def a_gpu(index: int = 0, capability: Maybe[tuple[int, int]] = (9, 0)) -> Gpu:
    bdf = f"0000:{index + 1:02x}:00.0"
    facts = (0, "nvidia", ABSENT, 0, capability, ABSENT, ABSENT, 0, 0, ())
    return Gpu(index, bdf, "H100", *facts, fabric_of(ABSENT), ABSENT)


def gpus_of(driver: DriverFacts | None = None, *gpus: Gpu) -> GpuFacts:
    return GpuFacts(driver or a_driver(), gpus or (a_gpu(),))


def rdma_of(*names: str, bdf: Maybe[str] = "0000:18:00.0") -> RdmaFacts:
    return RdmaFacts(
        tuple(
            RdmaDevice(
                name,
                f"/sys/class/infiniband/{name}",
                bdf,
                *[ABSENT] * 7,
                numa_node=0,
                is_virtual_function=False,
                uverbs=ABSENT,
                uverbs_number=ABSENT,
                ports=(),
            )
            for name in names
        )
    )


def a_module(
    name: str,
    state: Maybe[ModuleState],
    on_disk: Maybe[str] = "/lib/modules/x.ko",
    depends: Maybe[tuple[str, ...]] = (),
) -> KernelModule:
    return KernelModule(
        name, state, 0, (), ABSENT, ABSENT, ABSENT, {}, on_disk, "DKMS", depends, None, None, None
    )


def modules_of(
    peermem: KernelModule | None = None, symbol: Maybe[str] = "ib_core", **states: Maybe[ModuleState]
) -> ModuleFacts:
    every: dict[str, Maybe[ModuleState]] = {"nvidia": LIVE, "ib_core": LIVE, "ib_uverbs": LIVE}
    every |= {"nv_peer_mem": NOT_LOADED, **states}
    modules = {name: a_module(name, state) for name, state in every.items()}
    modules["nvidia_peermem"] = peermem or a_module(
        "nvidia_peermem", NOT_LOADED, depends=("ib_core", "nvidia")
    )
    provider = SymbolProvider(PEER_MEMORY_SYMBOL, "nvidia_peermem", symbol)
    return ModuleFacts("6.8.0-45-generic", modules, (), (provider,), ABSENT)


def facts_of(
    tmp_path: Path,
    answers: Maybe[int] | dict[str, Maybe[int]] = errno.EBADF,
    *,
    kernel: Maybe[KernelFacts] | None = None,
    modules: Maybe[ModuleFacts] | None = None,
    gpus: Maybe[GpuFacts] | None = None,
    rdma: Maybe[RdmaFacts] | None = None,
) -> GpuDirectFacts:
    return probe(
        Nics(tmp_path, answers),
        a_kernel() if kernel is None else kernel,
        modules_of() if modules is None else modules,
        gpus_of() if gpus is None else gpus,
        rdma_of("mlx5_0") if rdma is None else rdma,
    )


def lacks(state: PathState) -> list[str]:
    """Return what is missing according to the state."""
    return [requirement.lack for requirement in state.requirements if requirement.met is False]
