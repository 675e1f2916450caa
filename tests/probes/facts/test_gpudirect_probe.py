"""Which path can be used: DMA-BUF, and what libcuda says."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import DriverFacts, Flavor, Gpu
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PathState
from probes.facts.gpudirect_probe import dmabuf_verdict, probe
from probes.facts.rdma.devices import RdmaFacts
from probes.host.machine.local import LocalHost
from probes.host.protocol import CudaGpu
from tests.probes.facts.gpudirect_facts import (
    ABSENT,
    BUILTIN,
    DENIED,
    LIVE,
    NOT_LOADED,
    Nics,
    a_driver,
    a_gpu,
    a_kernel,
    a_module,
    facts_of,
    gpus_of,
    lacks,
    modules_of,
    rdma_of,
)


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
    facts = facts_of(tmp_path, gpus=gpus_of(a_driver(Flavor.PROPRIETARY)))
    assert facts.dmabuf.usable is False
    assert lacks(facts.dmabuf) == ["DMA-BUF needs the open kernel modules"]
    assert facts.preferred is None


@pytest.mark.parametrize(
    ("version", "met"), [("515.43.04", True), ("515.43.03", False), ("470.82.01", False), ("595.45", True)]
)
def test_the_first_driver_with_dmabuf_is_515_43_04(tmp_path: Path, version: str, met: bool) -> None:
    assert facts_of(tmp_path, gpus=gpus_of(a_driver(version=version))).dmabuf.usable is met


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EPROTONOSUPPORT])
def test_a_nic_driver_that_refuses_rules_dmabuf_out(tmp_path: Path, number: int) -> None:
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


def test_a_probe_that_could_not_run_leaves_it_unknown(tmp_path: Path) -> None:
    usable = facts_of(tmp_path, DENIED).dmabuf.usable
    assert isinstance(usable, Unknown)
    assert usable.reason is Reason.NEEDS_ROOT


def test_a_probe_that_could_not_run_does_not_hide_unmet_requirements(tmp_path: Path) -> None:
    assert facts_of(tmp_path, DENIED, gpus=gpus_of(a_driver(Flavor.PROPRIETARY))).dmabuf.usable is False


def test_a_tree_cannot_be_asked(tmp_path: Path) -> None:
    host = LocalHost(str(tmp_path))
    facts = probe(host, a_kernel(), modules_of(), gpus_of(), rdma_of("mlx5_0"))
    assert isinstance(facts.dmabuf.usable, Unknown)
    assert "a directory tree" in facts.dmabuf.usable.detail


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
    names = {requirement.name for requirement in facts_of(tmp_path).dmabuf.requirements}
    assert not any("dma_buf" in name for name in names)


def test_gpus_older_than_turing_are_too_old(tmp_path: Path) -> None:
    assert facts_of(tmp_path, gpus=gpus_of(None, a_gpu(0, (7, 0)))).dmabuf.usable is False
    assert facts_of(tmp_path, gpus=gpus_of(None, a_gpu(0, (7, 0)), a_gpu(1, (8, 0)))).dmabuf.usable is True
    assert facts_of(tmp_path, gpus=gpus_of(None, a_gpu(0, ABSENT))).dmabuf.usable is True


def test_a_driver_configured_to_refuse_says_so(tmp_path: Path) -> None:
    driver = replace(a_driver(version="580.95.05"), parameters={"GrdmaPciTopoCheckOverride": "2"})
    facts = facts_of(tmp_path, gpus=gpus_of(driver), modules=modules_of(a_module("nvidia_peermem", LIVE)))
    for state in (facts.dmabuf, facts.peermem):
        assert state.usable is False
        assert "GrdmaPciTopoCheckOverride" in lacks(state)[0]


def test_that_option_has_no_effect_behind_chip_to_chip_links(tmp_path: Path) -> None:
    option = {"GrdmaPciTopoCheckOverride": "2"}
    grace = gpus_of(replace(a_driver(version="580.95.05"), parameters=option), replace(a_gpu(), c2c_links=10))
    assert facts_of(tmp_path, gpus=grace).dmabuf.usable is True


def test_without_ib_uverbs_no_program_reaches_a_nic(tmp_path: Path) -> None:
    state = facts_of(tmp_path, DENIED, modules=modules_of(ib_uverbs=NOT_LOADED)).dmabuf
    assert lacks(state) == ["ib_uverbs is not loaded"]
    assert facts_of(tmp_path, modules=modules_of(ib_uverbs=BUILTIN)).dmabuf.usable is True


def test_without_the_driver_its_flavor_is_not_blamed(tmp_path: Path) -> None:
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
    tmp_path: Path, answer: Maybe[tuple[CudaGpu, ...]], *gpus: Gpu, driver: DriverFacts | None = None
) -> GpuDirectFacts:
    modules = modules_of(a_module("nvidia_peermem", LIVE))
    host = Nics(tmp_path, errno.EBADF)
    return probe(host, a_kernel(), modules, gpus_of(driver, *gpus), rdma_of("mlx5_0"), lambda: answer)


def evidence_of(state: PathState) -> str:
    return "\n".join(requirement.evidence for requirement in state.requirements)


def test_each_attribute_of_libcuda_decides_its_path(tmp_path: Path) -> None:
    facts = with_cuda(tmp_path, cuda((True, False)))
    assert (facts.dmabuf.usable, facts.peermem.usable) == (False, True)
    assert "cuDeviceGetAttribute(124) = 0" in evidence_of(facts.dmabuf)
    facts = with_cuda(tmp_path, cuda((False, True)))
    assert (facts.dmabuf.usable, facts.peermem.usable) == (True, False)
    assert "cuDeviceGetAttribute(116) = 0" in evidence_of(facts.peermem)


def test_a_path_is_there_for_the_gpus_that_support_it(tmp_path: Path) -> None:
    facts = with_cuda(tmp_path, cuda((True, False), (True, True)), a_gpu(0), a_gpu(1))
    assert facts.dmabuf.usable is True
    assert [facts.gpu_support[a_gpu(number).bdf].dmabuf for number in (0, 1)] == [False, True]


@pytest.mark.parametrize("answer", [ABSENT, DENIED, cuda((ABSENT, ABSENT)), ()])
def test_without_an_answer_of_libcuda_other_facts_decide(
    tmp_path: Path, answer: Maybe[tuple[CudaGpu, ...]]
) -> None:
    facts = with_cuda(tmp_path, answer)
    assert (facts.dmabuf.usable, facts.peermem.usable) == (True, True)
    proprietary = with_cuda(tmp_path, answer, driver=a_driver(Flavor.PROPRIETARY))
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


def test_confidential_computing_rules_out_both_paths_in_any_case(tmp_path: Path) -> None:
    driver = replace(a_driver(), confidential_computing=True)
    facts = with_cuda(tmp_path, cuda((True, True)), driver=driver)
    assert (facts.dmabuf.usable, facts.peermem.usable) == (False, False)
    assert "confidential computing" in facts.by_design


def test_only_libcuda_knows_about_a_vgpu(tmp_path: Path) -> None:
    share = replace(a_gpu(), name="NVIDIA A30-8C")
    unknown = with_cuda(tmp_path, ABSENT, share)
    assert isinstance(unknown.dmabuf.usable, Unknown)
    assert isinstance(unknown.peermem.usable, Unknown)
    assert not unknown.by_design
    assert with_cuda(tmp_path, cuda((False, False)), share).by_design
    assert with_cuda(tmp_path, cuda((True, True)), share).dmabuf.usable is True


def test_a_cuda_failure_is_named_and_affects_no_path(tmp_path: Path) -> None:
    """Fabric Manager or NVLSM down on HGX B200: no NVSwitch on the bus, and CUDA fails with 802."""
    failed = Unknown(Reason.DRIVER_ERROR, "libcuda", "cuInit(0) returned 802")
    facts = with_cuda(tmp_path, failed, replace(a_gpu(), name="NVIDIA B200"))
    assert (facts.dmabuf.usable, facts.peermem.usable) == (True, True)
    assert "802" in facts.cuda_failure
    no_device = Unknown(Reason.DRIVER_ERROR, "libcuda", "cuInit(0) returned 100")
    assert with_cuda(tmp_path, no_device).cuda_failure == ""
