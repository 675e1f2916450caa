"""Which path can be used: peer memory, EFA's own, and requirements that are not met."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.gpus import Flavor
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, Requirement
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from tests.probes.facts.gpudirect_facts import (
    ABSENT,
    BUILTIN,
    LIVE,
    NOT_LOADED,
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
from tests.support.trees import write


def nic(name: str, driver: str) -> RdmaDevice:
    return replace(rdma_of(name).devices[0], driver=driver)


def with_nics(tmp_path: Path, *devices: RdmaDevice) -> GpuDirectFacts:
    """The proprietary driver with nvidia_peermem, and NICs that refuse DMA-BUF."""
    live, gpus = modules_of(a_module("nvidia_peermem", LIVE)), gpus_of(a_driver(Flavor.PROPRIETARY))
    return facts_of(tmp_path, errno.EOPNOTSUPP, gpus=gpus, rdma=RdmaFacts(devices), modules=live)


def test_only_some_drivers_ask_peer_memory_clients(tmp_path: Path) -> None:
    """OFED's mlx5 asks them, Alibaba's erdma, and bnxt_re with ib_peer_mem; irdma, ionic and EFA do not."""
    drivers = {"mlx5_0": "mlx5_core", "bnxt_re0": "bnxt_en", "irdma0": "ice", "efa_0": "efa"}
    drivers |= {"erdma_0": "erdma", "ionic_0": "ionic"}
    devices = [nic(name, driver) for name, driver in drivers.items()]
    facts = with_nics(tmp_path, *devices)
    assert {name for name, answer in facts.nic_peermem.items() if answer} == {"mlx5_0", "erdma_0"}
    assert set(facts.nic_peermem.values()) == {True, False}
    write(tmp_path, "/sys/module/ib_peer_mem/initstate", "live\n")
    assert with_nics(tmp_path, *devices).nic_peermem["bnxt_re0"] is True


def test_the_kernels_own_peer_memory_does_not_serve_erdma(tmp_path: Path) -> None:
    """Some Ubuntu kernels have the interface without OFED; their erdma does not ask it."""
    modules = modules_of(a_module("nvidia_peermem", LIVE))
    kernels = replace(modules.modules["ib_core"], origin="kernel")
    modules = replace(modules, modules=modules.modules | {"ib_core": kernels})
    gpus, rdma = (
        gpus_of(a_driver(Flavor.PROPRIETARY)),
        RdmaFacts((nic("mlx5_0", "mlx5_core"), nic("erdma_0", "erdma"))),
    )
    facts = facts_of(tmp_path, errno.EOPNOTSUPP, gpus=gpus, rdma=rdma, modules=modules)
    assert facts.nic_peermem == {"mlx5_0": True, "erdma_0": False}


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
def test_efa_has_its_own_peer_memory(tmp_path: Path, path: str, text: str, usable: bool) -> None:
    """The proprietary driver of p4d does not use nvidia_peermem, whether loaded or not."""
    write(tmp_path, path, text)
    facts = with_nics(tmp_path, nic("efa_0", "efa"))
    assert (facts.peermem.path, facts.peermem.usable) == (GdrPath.EFA, usable)
    assert not any("nvidia_peermem" in requirement.name for requirement in facts.peermem.requirements)
    assert facts.nic_peermem == {"efa_0": usable}


def test_efa_with_the_open_driver_is_decided_by_the_probe(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, rdma=RdmaFacts((nic("efa_0", "efa"),)))
    assert facts.preferred is GdrPath.DMABUF


# nvidia-peermem


def test_a_loaded_peermem_has_registered(tmp_path: Path) -> None:
    """No memory_peers directory (kernel 6.4 and newer), no .ko in this container: it still works."""
    module = a_module("nvidia_peermem", LIVE, on_disk=ABSENT, depends=ABSENT)
    facts = facts_of(tmp_path, errno.EOPNOTSUPP, modules=modules_of(module, symbol=ABSENT))
    assert facts.peermem.usable is True
    assert facts.preferred is GdrPath.PEERMEM


def test_nv_peer_mem_works_too(tmp_path: Path) -> None:
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


def test_a_build_without_peer_memory_symbols_comes_first(tmp_path: Path) -> None:
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
    assert lacks(state)[0] == "nvidia_peermem is not installed for this kernel"


def test_dmabuf_works_without_peermem(tmp_path: Path) -> None:
    module = a_module("nvidia_peermem", NOT_LOADED, on_disk=ABSENT, depends=ABSENT)
    assert facts_of(tmp_path, modules=modules_of(module)).preferred is GdrPath.DMABUF


def test_facts_that_could_not_be_read_are_not_taken_for_no(tmp_path: Path) -> None:
    lost = Unknown(Reason.TIMED_OUT, "probe", "no answer for 5 s")
    facts = facts_of(tmp_path, kernel=lost, modules=lost, gpus=lost, rdma=lost)
    assert facts.dmabuf.usable == lost
    assert facts.peermem.usable == lost
    assert facts.preferred is None


def test_every_unmet_requirement_says_what_is_missing(tmp_path: Path) -> None:
    worst = facts_of(
        tmp_path,
        errno.EOPNOTSUPP,
        kernel=a_kernel("4.18.0", dmabuf=False),
        modules=modules_of(a_module("nvidia_peermem", NOT_LOADED, depends=()), ABSENT, ib_uverbs=NOT_LOADED),
        gpus=gpus_of(a_driver(Flavor.PROPRIETARY, "470.82.01"), a_gpu(0, (6, 0))),
    )
    unmet: list[Requirement] = [
        requirement
        for state in (worst.dmabuf, worst.peermem)
        for requirement in state.requirements
        if requirement.met is False
    ]
    assert len(unmet) >= 8
    assert all(requirement.lack and requirement.evidence for requirement in unmet)
