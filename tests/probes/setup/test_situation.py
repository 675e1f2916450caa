"""Where a node stands: each part on its own, on simulated nodes and on this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.driver_package import DriverOrigin
from probes.facts.kernel.boot_loader import BootLoader
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.nic_driver import NicStack
from probes.facts.system import slurm
from probes.facts.system.kubernetes import ContainerMessage, message_of
from probes.facts.system.packages import Family
from probes.facts.system.platform import Cloud, Provider
from probes.host.machine.local import LocalHost
from probes.host.protocol import Host
from probes.setup.situation import PROBES, Situation, read_situation, situation_rows
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.examination import examine
from probes.snapshot.verdict import assess
from probes.topology.paths import build

# Family, boot loader, NIC stack, Slurm, cloud.
EXPECTED = {
    "hgx-h100": (Family.DEBIAN, BootLoader.GRUB, NicStack.DOCA_OFED, True, None),
    "dgx-a100": (Family.DEBIAN, BootLoader.GRUB, NicStack.MLNX_OFED, True, None),
    "pcie-l40s": (Family.RED_HAT, BootLoader.GRUB_BLS, NicStack.INBOX, False, None),
    "gb200": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, False, None),
    "azure-nd-h100": (Family.DEBIAN, BootLoader.GRUB, NicStack.DOCA_OFED, True, Cloud(Provider.AZURE, "")),
    "aws-p5": (Family.DEBIAN, BootLoader.GRUB, NicStack.EFA, True, Cloud(Provider.AWS, "p5.48xlarge")),
    "slingshot": (Family.SUSE, BootLoader.GRUB, NicStack.SLINGSHOT, True, None),
    "bare-roce": (Family.DEBIAN, BootLoader.GRUB, NicStack.DOCA_OFED, True, None),
    "gcp-a4": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, True, Cloud(Provider.GOOGLE, "")),
    "oci-h100": (Family.DEBIAN, BootLoader.GRUB, NicStack.MLNX_OFED, True, Cloud(Provider.ORACLE, "")),
    "hgx-b200": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, False, None),
    "hgx-b300": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, False, None),
    "gb300": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, False, None),
    "vera-rubin": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, False, None),
    "aws-p6-b300": (
        *(Family.DEBIAN, BootLoader.GRUB, NicStack.EFA, True),
        Cloud(Provider.AWS, "p6-b300.48xlarge"),
    ),
    "dgx-spark": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, False, None),
    "cloud-vm": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, True, Cloud(Provider.AZURE, "")),
}


def situation_on(host: Host) -> Situation:
    return read_situation(host, examine(host))


def test_every_simulated_node_has_its_situation() -> None:
    missing = sorted({*SIMULATED_NAMES} - EXPECTED.keys())
    assert not missing, f"add what {missing} must show to EXPECTED in this file"


@pytest.mark.parametrize("name", EXPECTED)
def test_simulated_nodes(name: str) -> None:
    family, loader, stack, has_slurm, cloud = EXPECTED[name]
    host = SimulatedHost(name)
    found = situation_on(host)
    assert not isinstance(found.examination.distribution, Unknown)
    assert not isinstance(found.examination.boot, Unknown)
    assert not isinstance(found.nic_driver, Unknown)
    assert not isinstance(found.gpu_driver, Unknown)
    assert (found.examination.distribution.family, found.examination.boot.loader, found.nic_driver.stack) == (
        family,
        loader,
        stack,
    )
    assert found.examination.boot.next_kernel == host.tree.description.kernel
    assert (found.gpu_driver.origin, found.gpu_driver.by_dkms) == (DriverOrigin.PACKAGE, True)
    assert found.gpu_driver.version == host.tree.description.driver.version
    assert found.nic_driver.exports_peer_memory is host.tree.description.modules.ofed
    assert isinstance(found.slurm, Unknown) is not has_slurm
    assert (None if isinstance(found.cloud, Unknown) else found.cloud) == cloud
    assert isinstance(found.kubernetes, Unknown)


def messages_on(found: Situation) -> list[ContainerMessage | None]:
    assert not isinstance(found.kubernetes, Unknown)
    assert not isinstance(found.kubernetes.containers, Unknown)
    return [message_of(container) for container in found.kubernetes.containers if not container.ready]


def test_drivers_of_the_operators() -> None:
    found = situation_on(SimulatedHost("hgx-h100+k8s-operators"))
    assert not isinstance(found.gpu_driver, Unknown)
    assert not isinstance(found.nic_driver, Unknown)
    assert not isinstance(found.kubernetes, Unknown)
    assert found.gpu_driver.origin is DriverOrigin.CONTAINER
    assert found.nic_driver.stack is NicStack.CONTAINER
    assert messages_on(found) == []


def test_an_operator_that_waits_for_the_nic_driver() -> None:
    found = situation_on(SimulatedHost("hgx-h100+k8s-waiting-for-mofed"))
    assert ContainerMessage.WAITING_FOR_DRIVERS in messages_on(found)


def test_a_driver_pod_that_crashes() -> None:
    found = situation_on(SimulatedHost("pcie-l40s+k8s-peermem-ctr-crashloop"))
    assert not isinstance(found.kubernetes, Unknown)
    assert not isinstance(found.kubernetes.containers, Unknown)
    (container,) = found.kubernetes.containers
    assert (container.name, container.reason) == ("nvidia-driver-ctr", "CrashLoopBackOff")


def test_a_probe_that_fails_affects_only_its_own_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(host: Host) -> object:
        raise ValueError("unexpected")

    monkeypatch.setattr(slurm, "probe", fail)
    found = situation_on(SimulatedHost("hgx-h100"))
    assert isinstance(found.slurm, Unknown)
    assert "unexpected" in found.slurm.detail
    assert [name for name in PROBES if isinstance(getattr(found, name), Unknown)] == [
        "cloud",
        "slurm",
        "kubernetes",
    ]


def test_an_empty_tree_says_of_nothing_that_it_is_missing_for_sure(tmp_path: Path) -> None:
    """A dumped tree without /etc or /usr was not recorded: that is no node without Slurm or driver."""
    found = situation_on(LocalHost(str(tmp_path)))
    for part in (found.slurm, found.gpu_driver, found.examination.boot):
        assert isinstance(part, Unknown)
        assert part.reason is Reason.NOT_RECORDED


def test_a_driver_that_dkms_has_not_built_for_this_kernel_is_there() -> None:
    rows = dict(situation_rows(situation_on(SimulatedHost("hgx-h100+dkms-not-built-for-kernel"))))
    assert rows["GPU driver"] == "no module for this kernel, package"


def test_setup_counts_the_nics_that_check_counts() -> None:
    """A virtual machine's Ethernet adapter is no RDMA NIC."""
    host = SimulatedHost("hgx-h100")
    examination = examine(host)
    node = examination.node
    assert isinstance(node.pci, PciFacts)
    virtio = {
        bdf: replace(function, vendor_id=0x1AF4) if function.kind is PciKind.NIC else function
        for bdf, function in node.pci.functions.items()
    }
    none = Unknown(Reason.NOT_THERE, "/sys/class/infiniband")
    plain = replace(node, pci=replace(node.pci, functions=virtio), rdma=none)
    unread = replace(plain, rdma=Unknown(Reason.NEEDS_ROOT))
    for facts, verdict, row in (
        (plain, "no RDMA NIC", "no RDMA NIC"),
        (unread, "the RDMA devices could not be read (needs root)", "unknown (needs root)"),
    ):
        of_facts = replace(examination, node=facts, topology=build(facts))
        assert assess(facts, of_facts.topology, None).reason == verdict
        assert dict(situation_rows(read_situation(host, of_facts)))["NICs"] == row
