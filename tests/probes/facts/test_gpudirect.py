"""Which path can be used, from which evidence; and the signs of use."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import DriverFacts, Flavour, Gpu, GpuFacts
from probes.facts.gpudirect import (
    GdrPath,
    GpuDirectFacts,
    PathState,
    Requirement,
    parse_driver_version,
    read_peermem,
)
from probes.facts.gpudirect_probe import dmabuf_verdict, parse_bufinfo, probe
from probes.facts.kernel.modules import (
    PEER_MEMORY_SYMBOL,
    KernelModule,
    ModuleFacts,
    ModuleState,
    SymbolProvider,
)
from probes.facts.kernel.release import KernelFacts
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.host.cuda import CudaGpu
from probes.host.local import LocalHost

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
    return KernelFacts(release, (major, minor), "", (), False, "none", False, False, dma_shared_buffer=dmabuf)


def a_driver(flavour: Maybe[Flavour] = Flavour.OPEN, version: Maybe[str] = "570.124.06") -> DriverFacts:
    return DriverFacts(version, flavour, {}, "12.8", None)


def a_gpu(index: int = 0, capability: Maybe[tuple[int, int]] = (9, 0)) -> Gpu:
    bdf = f"0000:{index + 1:02x}:00.0"
    return Gpu(index, bdf, "H100", 0, "nvidia", ABSENT, 0, capability, ABSENT, ABSENT, 0, 0, (), ABSENT)


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
    peermem: KernelModule | None = None,
    symbol: Maybe[str] = "ib_core",
    **states: Maybe[ModuleState],
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
    """What the state says is missing."""
    return [one.lack for one in state.requirements if one.met is False]


# DMA-BUF


def test_open_modules_and_a_nic_that_answers_make_dmabuf_usable(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert facts.dmabuf.usable is True
    assert facts.preferred is GdrPath.DMABUF
    assert facts.nic_dmabuf == {"mlx5_0": True}


def test_dmabuf_is_preferred_where_both_work(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, modules=modules_of(a_module("nvidia_peermem", LIVE)))
    assert facts.peermem.usable is True
    assert facts.preferred is GdrPath.DMABUF


def test_proprietary_modules_have_no_dmabuf(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, gpus=gpus_of(a_driver(Flavour.PROPRIETARY)))
    assert facts.dmabuf.usable is False
    assert lacks(facts.dmabuf) == ["DMA-BUF needs the open kernel modules"]
    assert facts.preferred is None


@pytest.mark.parametrize(
    ("version", "met"), [("515.43.04", True), ("515.43.03", False), ("470.82.01", False), ("595.45", True)]
)
def test_the_first_driver_with_dmabuf_is_515_43_04(tmp_path: Path, version: str, met: bool) -> None:
    assert facts_of(tmp_path, gpus=gpus_of(a_driver(version=version))).dmabuf.usable is met


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EPROTONOSUPPORT])
def test_a_nic_driver_that_refuses_ends_it(tmp_path: Path, number: int) -> None:
    facts = facts_of(tmp_path, number)
    assert facts.dmabuf.usable is False
    assert facts.nic_dmabuf == {"mlx5_0": False}


@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.ENOMEM])
def test_any_other_errno_means_that_it_can(number: int) -> None:
    assert dmabuf_verdict(number) is True


def test_one_nic_that_can_is_enough(tmp_path: Path) -> None:
    answers: dict[str, Maybe[int]] = {"mlx5_0": errno.EOPNOTSUPP, "mlx5_1": errno.EBADF}
    facts = facts_of(tmp_path, answers, rdma=rdma_of("mlx5_0", "mlx5_1"))
    assert facts.dmabuf.usable is True
    assert facts.nic_dmabuf == {"mlx5_0": False, "mlx5_1": True}


def test_a_probe_that_could_not_be_made_leaves_it_unknown(tmp_path: Path) -> None:
    usable = facts_of(tmp_path, DENIED).dmabuf.usable
    assert isinstance(usable, Unknown)
    assert usable.reason is Reason.NEEDS_ROOT


def test_a_probe_that_could_not_be_made_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    assert facts_of(tmp_path, DENIED, gpus=gpus_of(a_driver(Flavour.PROPRIETARY))).dmabuf.usable is False


def test_a_tree_cannot_be_asked(tmp_path: Path) -> None:
    host = LocalHost(str(tmp_path))
    facts = probe(host, a_kernel(), modules_of(), gpus_of(), rdma_of("mlx5_0"))
    assert isinstance(facts.dmabuf.usable, Unknown)
    assert "a tree of files" in facts.dmabuf.usable.detail


@pytest.mark.parametrize("release", ["5.12.0", "5.15.0-1063-nvidia", "6.0.1"])
def test_no_kernel_6_is_needed(tmp_path: Path, release: str) -> None:
    assert facts_of(tmp_path, kernel=a_kernel(release)).dmabuf.usable is True


def test_an_old_kernel_with_ofeds_backport_has_dmabuf(tmp_path: Path) -> None:
    assert facts_of(tmp_path, kernel=a_kernel("4.18.0-553.el8")).dmabuf.usable is True


def test_an_old_kernel_whose_nics_refuse_has_none(tmp_path: Path) -> None:
    state = facts_of(tmp_path, errno.EOPNOTSUPP, kernel=a_kernel("4.18.0-553.el8")).dmabuf
    assert state.usable is False
    assert "5.12" in lacks(state)[0]


def test_an_old_kernel_whose_nics_could_not_be_asked_is_unknown(tmp_path: Path) -> None:
    state = facts_of(tmp_path, DENIED, kernel=a_kernel("4.18.0-553.el8")).dmabuf
    assert isinstance(state.usable, Unknown)


def test_a_kernel_configured_without_dmabuf_has_none(tmp_path: Path) -> None:
    assert facts_of(tmp_path, DENIED, kernel=a_kernel(dmabuf=False)).dmabuf.usable is False


def test_dma_buf_is_no_module_to_be_loaded(tmp_path: Path) -> None:
    names = {one.name for one in facts_of(tmp_path).dmabuf.requirements}
    assert not any("dma_buf" in name for name in names)


def test_gpus_older_than_turing_are_too_old(tmp_path: Path) -> None:
    assert facts_of(tmp_path, gpus=gpus_of(None, a_gpu(0, (7, 0)))).dmabuf.usable is False
    assert facts_of(tmp_path, gpus=gpus_of(None, a_gpu(0, (7, 0)), a_gpu(1, (8, 0)))).dmabuf.usable is True
    assert facts_of(tmp_path, gpus=gpus_of(None, a_gpu(0, ABSENT))).dmabuf.usable is True


def test_a_driver_told_to_refuse_says_so(tmp_path: Path) -> None:
    driver = replace(a_driver(version="580.95.05"), parameters={"GrdmaPciTopoCheckOverride": "2"})
    facts = facts_of(tmp_path, gpus=gpus_of(driver), modules=modules_of(a_module("nvidia_peermem", LIVE)))
    for state in (facts.dmabuf, facts.peermem):
        assert state.usable is False
        assert "GrdmaPciTopoCheckOverride" in lacks(state)[0]


def test_that_option_has_no_effect_on_older_drivers_and_behind_chip_to_chip_links(tmp_path: Path) -> None:
    option = {"GrdmaPciTopoCheckOverride": "2"}
    older = gpus_of(replace(a_driver(version="570.124.06"), parameters=option))
    assert facts_of(tmp_path, gpus=older).dmabuf.usable is True
    grace = gpus_of(replace(a_driver(version="580.95.05"), parameters=option), replace(a_gpu(), c2c_links=10))
    assert facts_of(tmp_path, gpus=grace).dmabuf.usable is True


def test_without_ib_uverbs_no_program_reaches_a_nic(tmp_path: Path) -> None:
    state = facts_of(tmp_path, DENIED, modules=modules_of(ib_uverbs=NOT_LOADED)).dmabuf
    assert lacks(state) == ["ib_uverbs is not loaded"]
    assert facts_of(tmp_path, modules=modules_of(ib_uverbs=BUILTIN)).dmabuf.usable is True


def test_without_the_driver_its_flavour_is_not_the_trouble(tmp_path: Path) -> None:
    gpus = gpus_of(a_driver(ABSENT, ABSENT))
    state = facts_of(tmp_path, modules=modules_of(nvidia=NOT_LOADED), gpus=gpus).dmabuf
    assert state.usable is False
    assert lacks(state) == ["the NVIDIA driver is not loaded"]


def test_a_software_rdma_device_is_not_asked_and_does_not_count(tmp_path: Path) -> None:
    host = Nics(tmp_path, errno.EBADF)
    facts = probe(host, a_kernel(), modules_of(), gpus_of(), rdma_of("rxe0", bdf=ABSENT))
    assert host.asked == []
    assert facts.dmabuf.usable is False


def test_the_kernels_own_name_is_asked_not_the_cleaned_one(tmp_path: Path) -> None:
    device = replace(rdma_of("mlx5_0").devices[0], sysfs_path="/sys/class/infiniband/mlx5\x07")
    host = Nics(tmp_path, errno.EBADF)
    probe(host, a_kernel(), modules_of(), gpus_of(), RdmaFacts((device,)))
    assert host.asked == ["mlx5\x07"]


# What the GPUs themselves support


def cuda(*answers: tuple[Maybe[bool], Maybe[bool]]) -> tuple[CudaGpu, ...]:
    """libcuda's answers (116, 124) for GPUs in order."""
    return tuple(CudaGpu(a_gpu(number).bdf, *answer) for number, answer in enumerate(answers))


def with_cuda(
    tmp_path: Path,
    answer: Maybe[tuple[CudaGpu, ...]],
    *gpus: Gpu,
    driver: DriverFacts | None = None,
) -> GpuDirectFacts:
    modules = modules_of(a_module("nvidia_peermem", LIVE))
    host = Nics(tmp_path, errno.EBADF)
    return probe(host, a_kernel(), modules, gpus_of(driver, *gpus), rdma_of("mlx5_0"), lambda: answer)


def test_each_attribute_of_libcuda_decides_its_path(tmp_path: Path) -> None:
    facts = with_cuda(tmp_path, cuda((True, False)))
    assert (facts.dmabuf.usable, facts.peermem.usable) == (False, True)
    assert any("cuDeviceGetAttribute(124) = 0" in one.evidence for one in facts.dmabuf.requirements)
    facts = with_cuda(tmp_path, cuda((False, True)))
    assert (facts.dmabuf.usable, facts.peermem.usable) == (True, False)
    assert any("cuDeviceGetAttribute(116) = 0" in one.evidence for one in facts.peermem.requirements)


def test_a_path_is_there_for_the_gpus_that_support_it(tmp_path: Path) -> None:
    facts = with_cuda(tmp_path, cuda((True, False), (True, True)), a_gpu(0), a_gpu(1))
    assert facts.dmabuf.usable is True
    assert [facts.gpu_support[a_gpu(number).bdf].dmabuf for number in (0, 1)] == [False, True]


@pytest.mark.parametrize("answer", [ABSENT, DENIED, cuda((ABSENT, ABSENT)), ()])
def test_a_libcuda_that_does_not_say_leaves_the_verdict_to_other_facts(
    tmp_path: Path, answer: Maybe[tuple[CudaGpu, ...]]
) -> None:
    facts = with_cuda(tmp_path, answer)
    assert (facts.dmabuf.usable, facts.peermem.usable) == (True, True)
    proprietary = with_cuda(tmp_path, answer, driver=a_driver(Flavour.PROPRIETARY))
    assert (proprietary.dmabuf.usable, proprietary.peermem.usable) == (False, True)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090", "NVIDIA GB10"])
@pytest.mark.parametrize("answer", [ABSENT, cuda((False, False))])
def test_geforce_and_gb10_cannot_by_design(
    tmp_path: Path, name: str, answer: Maybe[tuple[CudaGpu, ...]]
) -> None:
    facts = with_cuda(tmp_path, answer, replace(a_gpu(), name=name))
    assert (facts.dmabuf.usable, facts.peermem.usable) == (False, False)
    assert facts.by_design


def test_gb100_and_gb200_are_not_gb10(tmp_path: Path) -> None:
    for name in ("NVIDIA GB200", "NVIDIA GB100"):
        assert with_cuda(tmp_path, ABSENT, replace(a_gpu(), name=name)).dmabuf.usable is True


def test_confidential_computing_bars_both_paths_whatever_libcuda_says(tmp_path: Path) -> None:
    driver = replace(a_driver(), confidential_computing=True)
    facts = with_cuda(tmp_path, cuda((True, True)), driver=driver)
    assert (facts.dmabuf.usable, facts.peermem.usable) == (False, False)
    assert "confidential computing" in facts.by_design


def test_only_libcuda_can_tell_of_a_vgpu(tmp_path: Path) -> None:
    share = replace(a_gpu(), name="NVIDIA A30-8C")
    unknown = with_cuda(tmp_path, ABSENT, share)
    assert isinstance(unknown.dmabuf.usable, Unknown)
    assert isinstance(unknown.peermem.usable, Unknown)
    assert not unknown.by_design
    assert with_cuda(tmp_path, cuda((False, False)), share).by_design
    assert with_cuda(tmp_path, cuda((True, True)), share).dmabuf.usable is True


def test_a_cuda_that_does_not_start_is_named_and_is_no_fault_of_a_path(tmp_path: Path) -> None:
    """Fabric Manager or NVLSM down on HGX B200: no NVSwitch on the bus, and CUDA fails with 802."""
    failed = Unknown(Reason.DRIVER_ERROR, "libcuda", "cuInit(0) returned 802")
    facts = with_cuda(tmp_path, failed, replace(a_gpu(), name="NVIDIA B200"))
    assert (facts.dmabuf.usable, facts.peermem.usable) == (True, True)
    assert "802" in facts.cuda_failure
    no_device = Unknown(Reason.DRIVER_ERROR, "libcuda", "cuInit(0) returned 100")
    assert with_cuda(tmp_path, no_device).cuda_failure == ""


# NICs by their drivers


def nic(name: str, driver: str) -> RdmaDevice:
    return replace(rdma_of(name).devices[0], driver=driver)


def with_nics(tmp_path: Path, *devices: RdmaDevice) -> GpuDirectFacts:
    """The proprietary driver with nvidia_peermem, and NICs that refuse DMA-BUF."""
    live, gpus = modules_of(a_module("nvidia_peermem", LIVE)), gpus_of(a_driver(Flavour.PROPRIETARY))
    return facts_of(tmp_path, errno.EOPNOTSUPP, gpus=gpus, rdma=RdmaFacts(devices), modules=live)


def test_only_some_drivers_ask_peer_memory_clients(tmp_path: Path) -> None:
    """OFED's mlx5 does, bnxt_re with ib_peer_mem; irdma and EFA beside it do not."""
    drivers = {"mlx5_0": "mlx5_core", "bnxt_re0": "bnxt_en", "irdma0": "ice", "efa_0": "efa"}
    devices = [nic(name, driver) for name, driver in drivers.items()]
    facts = with_nics(tmp_path, *devices)
    assert facts.nic_peermem == {"mlx5_0": True, "bnxt_re0": False, "irdma0": False, "efa_0": False}
    write(tmp_path, "/sys/module/ib_peer_mem/initstate", "live\n")
    assert with_nics(tmp_path, *devices).nic_peermem["bnxt_re0"] is True


def test_a_driver_that_was_not_recorded_is_taken_for_one_that_can(tmp_path: Path) -> None:
    assert with_nics(tmp_path, *rdma_of("mlx5_0").devices).nic_peermem == {"mlx5_0": True}


@pytest.mark.parametrize(
    ("path", "text", "usable"),
    [
        ("/sys/module/efa_nv_peermem/initstate", "live\n", True),
        ("/sys/class/infiniband/efa_0/device/gdr", "1\n", True),
        ("/sys/class/infiniband/efa_0/device/p2p", "NVIDIA peermem\n", True),
        ("/sys/class/infiniband/efa_0/device/p2p", "NEURON\n", False),
        ("/sys/class/infiniband/efa_0/fw_ver", "0.0.0.0\n", False),
    ],
)
def test_efa_has_a_peer_memory_of_its_own(tmp_path: Path, path: str, text: str, usable: bool) -> None:
    """The proprietary driver of p4d: nvidia_peermem plays no part, loaded or not."""
    write(tmp_path, path, text)
    facts = with_nics(tmp_path, nic("efa_0", "efa"))
    assert (facts.peermem.path, facts.peermem.usable) == (GdrPath.EFA, usable)
    assert not any("nvidia_peermem" in one.name for one in facts.peermem.requirements)
    assert facts.nic_peermem == {"efa_0": usable}


def test_efa_with_the_open_driver_is_decided_by_the_probe(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, rdma=RdmaFacts((nic("efa_0", "efa"),)))
    assert facts.preferred is GdrPath.DMABUF


# nvidia-peermem


def test_a_loaded_peermem_has_registered(tmp_path: Path) -> None:
    """No memory_peers directory (kernel 6.4 and newer), no .ko in this container: it works all the same."""
    module = a_module("nvidia_peermem", LIVE, on_disk=ABSENT, depends=ABSENT)
    facts = facts_of(tmp_path, errno.EOPNOTSUPP, modules=modules_of(module, symbol=ABSENT))
    assert facts.peermem.usable is True
    assert facts.preferred is GdrPath.PEERMEM


def test_nv_peer_mem_serves_as_well(tmp_path: Path) -> None:
    assert facts_of(tmp_path, modules=modules_of(nv_peer_mem=LIVE)).peermem.usable is True


def test_peermem_on_disk_but_not_loaded_is_not_usable(tmp_path: Path) -> None:
    state = facts_of(tmp_path).peermem
    assert lacks(state) == ["nvidia_peermem is not loaded"]


@pytest.mark.parametrize(
    "depends", [("ib_uverbs", "nvidia"), ("nvidia", "ib_core"), ("nvidia", "ib_peer_mem")]
)
def test_any_exporter_of_the_symbols_shows_a_good_build(tmp_path: Path, depends: tuple[str, ...]) -> None:
    module = a_module("nvidia_peermem", NOT_LOADED, depends=depends)
    assert lacks(facts_of(tmp_path, modules=modules_of(module)).peermem) == ["nvidia_peermem is not loaded"]


def test_a_build_without_peer_memory_symbols_is_the_first_thing_said(tmp_path: Path) -> None:
    module = a_module("nvidia_peermem", NOT_LOADED, depends=("nvidia",))
    state = facts_of(tmp_path, modules=modules_of(module)).peermem
    assert lacks(state)[0] == "nvidia_peermem was built without peer-memory symbols"


def test_an_inbox_ib_core_has_no_peer_memory_symbols(tmp_path: Path) -> None:
    state = facts_of(tmp_path, modules=modules_of(symbol=ABSENT)).peermem
    assert lacks(state)[0] == "the IB core exports no peer-memory symbols"
    built_in = modules_of(symbol=ABSENT, ib_core=BUILTIN)
    assert "the IB core exports no peer-memory symbols" not in lacks(
        facts_of(tmp_path, modules=built_in).peermem
    )


def test_no_ko_for_this_kernel(tmp_path: Path) -> None:
    module = a_module("nvidia_peermem", NOT_LOADED, on_disk=ABSENT, depends=ABSENT)
    state = facts_of(tmp_path, modules=modules_of(module)).peermem
    assert lacks(state)[0] == "there is no nvidia_peermem for this kernel"


def test_dmabuf_makes_up_for_an_absent_peermem(tmp_path: Path) -> None:
    module = a_module("nvidia_peermem", NOT_LOADED, on_disk=ABSENT, depends=ABSENT)
    assert facts_of(tmp_path, modules=modules_of(module)).preferred is GdrPath.DMABUF


def test_facts_that_could_not_be_read_are_not_taken_for_no(tmp_path: Path) -> None:
    lost = Unknown(Reason.TIMED_OUT, "probe", "no answer for 5 s")
    facts = facts_of(tmp_path, kernel=lost, modules=lost, gpus=lost, rdma=lost)
    assert facts.dmabuf.usable == lost
    assert facts.peermem.usable == lost
    assert facts.preferred is None


def test_every_requirement_that_is_not_met_says_what_is_lacking(tmp_path: Path) -> None:
    worst = facts_of(
        tmp_path,
        errno.EOPNOTSUPP,
        kernel=a_kernel("4.18.0", dmabuf=False),
        modules=modules_of(a_module("nvidia_peermem", NOT_LOADED, depends=()), ABSENT, ib_uverbs=NOT_LOADED),
        gpus=gpus_of(a_driver(Flavour.PROPRIETARY, "470.82.01"), a_gpu(0, (6, 0))),
    )
    unmet: list[Requirement] = [
        one for state in (worst.dmabuf, worst.peermem) for one in state.requirements if one.met is False
    ]
    assert len(unmet) >= 8
    assert all(one.lack and one.evidence for one in unmet)


# In use now

HEADER = "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n"
OURS = "274877906944\t00080002\t00080007\t00000003\tnv_dmabuf\t00001234\t\n"
OTHER = "00008192\t00080002\t00080007\t00000003\ti915\t00001235\t\n"
NIC = "\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n"
NOBODY = "\tAttached Devices:\nTotal 0 devices attached\n\n"
FENCE = "\tkernel fence:nvidia 0000:1b:00.0 seq 1 signalled\n"


@pytest.mark.parametrize(
    ("text", "in_use"),
    [
        (HEADER + OURS + NIC, True),
        (HEADER + OTHER + NIC + OURS + NIC, True),
        (HEADER + OURS + NOBODY, False),
        (HEADER + OURS + FENCE + NOBODY, False),
        (HEADER + OURS + NOBODY + OTHER + NIC, False),
        (HEADER + OURS + NOBODY + OTHER.replace("00008192", "274877906944") + NIC, False),
        (HEADER + OTHER.replace("\t\n", "\tnv_dmabuf\n") + NIC, False),
        (HEADER + "\nTotal 0 objects, 0 bytes\n", False),
        ("", False),
    ],
)
def test_a_buffer_of_the_gpu_driver_with_a_device_is_in_use(text: str, in_use: bool) -> None:
    assert parse_bufinfo(text) == (frozenset({"0000:18:00.0"}) if in_use else frozenset())


def test_whether_dmabuf_is_in_use_is_unknown_without_debugfs(tmp_path: Path) -> None:
    assert isinstance(facts_of(tmp_path).dmabuf_in_use, Unknown)
    file = tmp_path / "sys/kernel/debug/dma_buf/bufinfo"
    file.parent.mkdir(parents=True)
    file.write_text(HEADER + OURS + NIC)
    assert facts_of(tmp_path).dmabuf_in_use is True


@pytest.mark.parametrize(("vendor", "in_use"), [("0x10de\n", False), ("0x15b3\n", True), (None, False)])
def test_only_a_nic_that_is_attached_is_use(tmp_path: Path, vendor: str | None, in_use: bool) -> None:
    """Another GPU, a camera or a capture card attached to GPU memory is no GPUDirect RDMA of a NIC."""
    bufinfo = HEADER + OURS + NIC.replace("0000:18:00.0", "0000:c1:00.0")
    write(tmp_path, "/sys/kernel/debug/dma_buf/bufinfo", bufinfo)
    if vendor is not None:
        write(tmp_path, "/sys/bus/pci/devices/0000:c1:00.0/vendor", vendor)
    assert facts_of(tmp_path).dmabuf_in_use is in_use


@given(st.text() | st.lists(st.sampled_from([HEADER, OURS, OTHER, NIC, NOBODY, FENCE])).map("".join))
def test_no_bufinfo_crashes_the_parser(text: str) -> None:
    assert len(parse_bufinfo(text)) <= len(text)


@given(st.text())
def test_no_driver_version_crashes_the_parser(text: str) -> None:
    numbers = parse_driver_version(text)
    assert numbers is None or len(numbers) == 3


# The reading


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_refcnt_is_read_and_zero_is_a_number(tmp_path: Path) -> None:
    write(tmp_path, "/sys/module/nvidia_peermem/refcnt", "0\n")
    reading = read_peermem(LocalHost(str(tmp_path)))
    assert reading.refcnt == 0
    assert isinstance(reading.peers, Unknown)


def test_the_refcnt_of_nv_peer_mem_stands_in(tmp_path: Path) -> None:
    write(tmp_path, "/sys/module/nv_peer_mem/refcnt", "7\n")
    assert read_peermem(LocalHost(str(tmp_path))).refcnt == 7


def test_no_peermem_is_not_there_rather_than_zero(tmp_path: Path) -> None:
    refcnt = read_peermem(LocalHost(str(tmp_path))).refcnt
    assert isinstance(refcnt, Unknown)
    assert refcnt.reason is Reason.NOT_THERE


def test_memory_peers_count_live_regions_and_bytes(tmp_path: Path) -> None:
    client = "/sys/kernel/mm/memory_peers/nv_mem"
    for name, value in {
        "num_alloc_mrs": 112,
        "num_dealloc_mrs": 100,
        "num_reg_bytes": 5 << 30,
        "num_dereg_bytes": 1 << 30,
    }.items():
        write(tmp_path, f"{client}/{name}", f"{value}\n")
    write(tmp_path, "/sys/kernel/mm/memory_peers/nv_mem_nc/num_alloc_mrs", "garbage\n")
    peers = read_peermem(LocalHost(str(tmp_path))).peers
    assert not isinstance(peers, Unknown)
    first, second = peers
    assert (first.client, first.live_mrs, first.live_bytes) == ("nv_mem", 12, 4 << 30)
    assert isinstance(second.live_mrs, Unknown)
    assert second.live_mrs.reason is Reason.MALFORMED
