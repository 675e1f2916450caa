"""The DMA function (Data Direct) of each RDMA device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciKind, kind_of
from probes.facts.rdma import devices as rdma
from probes.facts.rdma.data_direct import DataDirectFacts, function_of, probe
from probes.host.machine.local import LocalHost
from tests.support.trees import add_function, add_rdma_device

NIC = ("pci0000:00", "0000:00:00.0", "0000:03:00.0")
DMA_PATH = ("pci0009:00", "0009:00:00.0", "0009:03:00.0")
DMA = DMA_PATH[-1]
PATH = f"/devices/pci0009:00/0009:00:00.0/0009:01:00.0/0009:02:00.0/{DMA}"


class Nics(LocalHost):
    """A tree whose libmlx5 answers."""

    def __init__(self, root: Path, answer: Maybe[str]) -> None:
        super().__init__(str(root))
        self.answer = answer
        self.asked: list[str] = []

    def data_direct_paths(self, devices: Sequence[str]) -> dict[str, Maybe[str]]:
        self.asked.extend(devices)
        return dict.fromkeys(devices, self.answer)


def facts_of(host: LocalHost) -> DataDirectFacts:
    facts = probe(host, pci.probe(host), rdma.probe(host))
    assert isinstance(facts, DataDirectFacts)
    return facts


def test_a_nic_has_the_function_that_libmlx5_names(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1023, 0x020700)
    add_function(tmp_path, DMA_PATH, 0x15B3, 0x2100, 0x080100)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    assert facts_of(Nics(tmp_path, PATH)) == DataDirectFacts((DMA,), {"mlx5_0": DMA})
    assert facts_of(Nics(tmp_path, "")).of_devices == {"mlx5_0": None}
    denied = Unknown(Reason.NEEDS_ROOT, "mlx5_0")
    assert facts_of(Nics(tmp_path, denied)).of_devices == {"mlx5_0": denied}


def test_without_a_dma_function_no_library_is_asked(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1023, 0x020700)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    host = Nics(tmp_path, PATH)
    assert facts_of(host) == DataDirectFacts(())
    assert host.asked == []


def test_a_path_to_another_bus_is_malformed() -> None:
    answer = function_of("/devices/pci0009:00/0009:04:00.0", (DMA,))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED


@given(st.text(max_size=200))
def test_any_text_is_a_function_of_this_bus_or_unknown(text: str) -> None:
    assert function_of(text, (DMA,)) in (None, DMA) or isinstance(function_of(text, (DMA,)), Unknown)


@pytest.mark.parametrize(("vendor", "kind"), [(0x15B3, PciKind.DMA), (0x8086, PciKind.OTHER)])
def test_only_mellanox_dma_controllers_are_dma_functions(vendor: int, kind: PciKind) -> None:
    assert kind_of(0x080100, vendor) is kind
