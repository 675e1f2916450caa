"""Faults of NICs and their ports; of other vendors also modules, peer memory and the network plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.facts.gpudirect_probe import CXI_GPU_PARAMETER
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.kernel.modules import EFA_PEERMEM
from probes.facts.rdma.port_health import PORT_DATA
from probes.facts.rdma.roce import CONF
from probes.simulation.faults.fault import (
    ChangeDescription,
    Faults,
    add_file,
    add_link,
    as_change,
    bind,
    change_devices,
    change_fields,
    empty_gid,
    fault,
    logged,
    refused,
    remove_path,
    replace_content,
    unloaded,
)
from probes.simulation.node.devices.network import set_qos
from probes.simulation.node.devices.ports import netdev_of, port_of
from probes.simulation.node.jobs.traffic import change_count
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Content, PlacedNic, Refusal, Tree, log
from probes.simulation.node.modules.loading import INVALID, symbol_mismatch
from probes.simulation.node.modules.modules import remove_module_file

_WITHOUT_DRIVER, _WITHOUT_RDMA, _FOR_GUESTS = "mlx5_6", "mlx5_5", "mlx5_7"
_ROCE = ("mlx5_4", "mlx5_9")
_HALF_RATES = {
    "800": "400 Gb/sec (4X NDR)",
    "400": "200 Gb/sec (4X HDR)",
    "200": "100 Gb/sec (4X EDR)",
    "100": "50 Gb/sec (2X EDR)",
}
_JOB = "/proc/41900"
_EFA, _CXI = "aws-p5", "slingshot"  # nodes with NICs of AWS and HPE
_REFUSES_PROPRIETARY = Refusal(INVALID.error, ((6, "efa_nv_peermem: Nvidia proprietary is unsupported"),))
_WITHOUT_DMABUF = change_fields(gpudirect={"dmabuf": False})
_PROPRIETARY = change_fields(driver={"flavor": "proprietary"}, gpudirect={"dmabuf": False})

FAULTS = Faults()


def _compute_nic(tree: Tree, name: str) -> PlacedNic:
    """Return the NIC of this name, else the compute NIC in its place: EFAs are named by their slot."""
    named = next((nic for nic in tree.nics if nic.name == name), None)
    return named or tree.compute_nics[int(name.rpartition("_")[2]) % len(tree.compute_nics)]


@as_change
def _port(tree: Tree, /, name: str, **files: str) -> None:
    """Change files of a port."""
    nic = _compute_nic(tree, name)
    for file, value in files.items():
        replace_content(tree, f"{port_of(nic)}/{file}", f"{value}\n")


@FAULTS.fault("half-rate", "A port (mlx5_2) runs at half its rate", finds=("single-rail-or-half-rate",))
def _half_rate(tree: Tree) -> None:
    """Halve the rate of one port, and its traffic."""
    port = port_of(_compute_nic(tree, "mlx5_2"))
    whole = tree.text(f"{port}/rate").partition(" ")[0]
    if whole in _HALF_RATES:
        _slow_port("mlx5_2", _HALF_RATES[whole], 2)(tree)


@as_change
def _slow_port(tree: Tree, name: str, rate: str, divisor: int) -> None:
    """Set the rate of a port, and divide its traffic."""
    _port(name, rate=rate)(tree)
    for counter in PORT_DATA:
        change_count(tree, _compute_nic(tree, name), counter, lambda count, _: count // divisor)


@as_change
def _counter(tree: Tree, name: str, counter: str, content: Content) -> None:
    replace_content(tree, f"{port_of(tree.nic(name))}/{counter}", content)


def _rising(start: int, seconds_each: float) -> Content:
    return lambda seconds: f"{start + int(seconds / seconds_each)}\n"


@as_change
def _netdev(tree: Tree, file: str, value: str, *nics: str) -> None:
    """Change a file of netdevs."""
    for nic in map(tree.nic, nics):
        if f"{nic.path}/net" in tree.directories:
            replace_content(tree, f"{nic.path}/net/{netdev_of(tree, nic)}/{file}", f"{value}\n")


def _lose_carrier(tree: Tree, nic: PlacedNic) -> None:
    _netdev("operstate", "down", nic.name)(tree)


def _zero_guid(tree: Tree, nic: PlacedNic) -> None:
    """Set the GUIDs of a virtual function as they are before its host sets them."""
    replace_content(tree, f"{nic.path}/infiniband/{nic.name}/node_guid", "0000:0000:0000:0000\n")
    replace_content(tree, f"{port_of(nic)}/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000\n")


@as_change
def _gids(tree: Tree, name: str, keep: Callable[[int], bool]) -> None:
    """Clear entries of a GID table."""
    for index in range(16):
        if not keep(index):
            empty_gid(tree, port_of(tree.nic(name)), index)


def _elsewhere(tree: Tree, name: str) -> None:
    """Remove an RDMA device; its uverbs device is listed in every namespace."""
    tree.remove(f"/sys/class/infiniband/{name}")
    tree.remove(f"{tree.nic(name).path}/infiniband")


def _without_rdma(tree: Tree, name: str) -> None:
    _elsewhere(tree, name)
    for path in [path for path, text in tree.files.items() if text == f"{name}\n" and "/uverbs" in path]:
        tree.remove(path.rpartition("/")[0])


def _unbind(tree: Tree, name: str, driver: str = "") -> None:
    nic = tree.nic(name)
    _without_rdma(tree, name)
    if f"{nic.path}/net" in tree.directories:
        tree.remove(f"/sys/class/net/{netdev_of(tree, nic)}")
        tree.remove(f"{nic.path}/net")
    bind(tree, nic.path, driver)


def _in_pods(tree: Tree) -> None:
    """Move all RDMA devices to network namespaces of pods, as rdma-cni does."""
    for number, nic in enumerate(tree.nics):
        _elsewhere(tree, nic.name)
        tree.link(f"/sys/class/infiniband_verbs/uverbs{number}/device", nic.path)
        name = f"mlx5_core.rdma.{number}"
        tree.add(f"{nic.path}/{name}/uevent", "")
        tree.link(f"{nic.path}/{name}/driver", "/sys/bus/auxiliary/drivers/mlx5_ib.rdma")
        tree.link(f"/sys/bus/auxiliary/devices/{name}", f"{nic.path}/{name}")
    tree.commands["rdma"] = lambda argv, seconds: "netns exclusive copy-on-fork on\n"


def _bond(tree: Tree) -> None:
    nic = tree.nic("mlx5_9")
    tree.link("/sys/class/net/bond0", f"{nic.path}/net/{netdev_of(tree, nic)}")
    for index in range(16):
        replace_content(tree, f"{port_of(nic)}/gid_attrs/ndevs/{index}", "bond0\n")


@FAULTS.fault("roce-bond-port-down", "A port of a bonded NIC (mlx5_bond_2) has no link", on="bare-roce")
def _bond_port_down(tree: Tree) -> None:
    """Take one port of a bond down: its RDMA device stays ACTIVE, and the bond's rate halves."""
    nic = tree.nic("mlx5_bond_2")
    member = f"{nic.path}/net/{netdev_of(tree, nic)}"
    for file, value in (("operstate", "down"), ("speed", "-1"), ("bonding_slave/mii_status", "down")):
        replace_content(tree, f"{member}/{file}", f"{value}\n")


@as_change
def _rails(tree: Tree, key: str, value: int) -> None:
    """Set one of the IPv4 settings of all netdevs."""
    for path in [path for path in tree.files if path.startswith(f"{CONF}/") and path.endswith(f"/{key}")]:
        tree.add(path, f"{value}\n")


def _trust_pcp(tree: Tree) -> None:
    described = tree.description.nic["compute"].qos
    if described is not None:
        set_qos(tree, replace(described, trusts_dscp=False))


@as_change
def _unset_in_conf(tree: Tree, line: str) -> None:
    tree.add(NCCL_CONF, tree.text(NCCL_CONF).replace(f"{line}\n", ""))


@FAULTS.fault("roce-class-overridden", "The driver overrides the jobs' traffic class", on="bare-roce")
def _class_of_driver(tree: Tree) -> None:
    for nic in tree.nics:
        tree.add(f"{nic.path}/infiniband/{nic.name}/tc/1/traffic_class", "Global tclass=104\n")


@as_change
def _logs(tree: Tree, name: str, text: str) -> None:
    log(tree, f"mlx5_core {tree.nic(name).bdf}: {text}")


def _without_dmabuf(id_: str, prefix: str, module: str) -> ChangeDescription:
    """Return a change to NICs of another vendor, whose driver does not register DMA-BUFs."""

    def change(description: NodeDescription) -> NodeDescription:
        live = (name for name in description.modules.live if not name.startswith("mlx5_"))
        return change_fields(
            nic={
                kind: replace(nic, id=id_, hca="", firmware="", board="")
                for kind, nic in description.nic.items()
            },
            modules={"live": (*live, module)},
            gpudirect={"dmabuf": False},
        )(change_devices(lambda device: device.replace(" mlx5_", f" {prefix}"))(description))

    return change


def _needs_own_slots(tree: Tree) -> None:
    """Refuse nodes whose NVSwitches are managed through a ConnectX: their NICs are those of the board."""
    if tree.bridges:
        raise LookupError


# fmt: off
FAULTS += (
    fault("port-down", "A port (mlx5_1) has no link",
          _port("mlx5_1", state="1: DOWN", phys_state="2: Polling"),
          lambda tree: _lose_carrier(tree, _compute_nic(tree, "mlx5_1")), finds=("ib-port-not-active",)),
    fault("port-link-training", "A port (mlx5_1) does not finish link training",
          _port("mlx5_1", state="1: DOWN", phys_state="4: PortConfigurationTraining"),
          lambda tree: _lose_carrier(tree, _compute_nic(tree, "mlx5_1")), finds=("ib-port-not-active",),
          on="dgx-a100"),
    fault("port-held-down", "A port (mlx5_2) stays down while its link is up",
          _port("mlx5_2", state="1: DOWN", phys_state="5: LinkUp"), finds=("ib-port-not-active-link-up",),
          on="dgx-a100"),
    fault("virtual-port-without-guid", "The port of a virtual function (mlx5_0) has no GUID",
          _port("mlx5_0", state="1: DOWN", phys_state="5: LinkUp", lid="0xffff", sm_lid="0x0"),
          lambda tree: _zero_guid(tree, _compute_nic(tree, "mlx5_0")),
          finds=("ib-port-not-active-link-up",), on="azure-nd-h100"),
    fault("port-recovering", "The link of an active port (mlx5_3) recovers from errors",
          _port("mlx5_3", phys_state="6: LinkErrorRecovery"), finds=("ib-port-active-without-link",),
          on="dgx-a100"),
    fault("netdev-down", "The netdev of a RoCE port (mlx5_4) is down",
          _port("mlx5_4", state="1: DOWN", phys_state="3: Disabled"), _netdev("flags", "0x1002", "mlx5_4"),
          _netdev("operstate", "down", "mlx5_4"), finds=("ib-port-not-active-netdev-down",)),
    fault("nic-firmware-mismatch", "A NIC (mlx5_2) has older firmware than the others",
          lambda tree: replace_content(
              tree, f"{tree.nic('mlx5_2').path}/infiniband/mlx5_2/fw_ver", "28.39.1002\n")),
    fault("roce-lossless-off", "ECN is off on the RoCE ports",
          *(_netdev(f"ecn/roce_rp/enable/{priority}", "0", *_ROCE) for priority in range(8))),
    fault("roce-gid-wrong", "A job sets NCCL_IB_GID_INDEX to an empty GID",
          add_file(f"{_JOB}/comm", "python3\n"), add_file(f"{_JOB}/environ", b"NCCL_IB_GID_INDEX=11\0"),
          add_file(f"{_JOB}/status", "Name:\tpython3\nState:\tS (sleeping)\nUid:\t1000\t1000\t1000\t1000\n"),
          add_file(f"{_JOB}/maps", ""), add_link(f"{_JOB}/fd/3", "/dev/nvidia0")),
    fault("port-disabled", "A port (mlx5_3) is disabled",
          _port("mlx5_3", state="1: DOWN", phys_state="3: Disabled"), finds=("ib-port-not-active-disabled",)),
    fault("no-subnet-manager", "A port (mlx5_5) has no subnet manager",
          _port("mlx5_5", state="2: INIT", sm_lid="0x0", lid="0x0"),
          finds=("ib-port-not-active-no-subnet-manager",), excludes=("nic-without-rdma-device",)),
    fault("subnet-manager-stalled", "The subnet manager stopped halfway on a port (mlx5_6)",
          _port("mlx5_6", state="3: ARMED"), finds=("ib-port-not-active-subnet-manager-stalled",),
          excludes=("nic-without-driver",)),
    fault("link-layer-wrong", "A port (mlx5_8) is set to Ethernet on an InfiniBand network",
          _port("mlx5_8", link_layer="Ethernet", state="1: DOWN", phys_state="3: Disabled", sm_lid="0x0"),
          _netdev("operstate", "down", "mlx5_8")),
    fault("rate-shown-as-sdr", "The kernel shows the rate of a port (mlx5_0) as SDR",
          _port("mlx5_0", rate="10 Gb/sec (4X SDR)")),
    fault("one-lane", "A port (mlx5_7) runs on one lane of four",
          _slow_port("mlx5_7", "100 Gb/sec (1X NDR)", 4), finds=("single-rail-or-half-rate-one-lane",),
          excludes=("nic-passed-through",)),
    fault("roce-class-not-lossless", "Jobs set no traffic class, and only one class is lossless",
          _unset_in_conf("NCCL_IB_TC=106"), on="bare-roce"),
    fault("roce-rails-one-subnet", "RoCE NICs in the same subnet answer each other's ARP requests",
          _rails("arp_ignore", 0), on="bare-roce"),
    fault("roce-rp-filter-strict", "Strict reverse path filtering on RoCE NICs in the same subnet",
          _rails("rp_filter", 1), on="oci-h100"),
    fault("bond-one-queue-pair", "NCCL uses one queue pair per connection over bonded NICs",
          _unset_in_conf("NCCL_IB_QPS_PER_CONNECTION=2"), finds=("single-rail-or-half-rate-bond",),
          on="bare-roce"),
    fault("roce-gid-wrong-namespace", "The GID table of a RoCE port is empty",
          lambda tree: _gids(tree.nics[0].name, lambda _: False)(tree), on="pcie-l40s"),
    fault("roce-gid-wrong-no-v2", "A RoCE port (mlx5_9) has only RoCE v1 GIDs",
          _gids("mlx5_9", lambda index: index % 2 == 0)),
    fault("roce-gid-wrong-link-local", "A RoCE port (mlx5_4) has only link-local GIDs",
          _gids("mlx5_4", lambda index: index < 2), excludes=("netdev-down",)),
    fault("mtu-mismatch", "A RoCE port (mlx5_9) has a smaller MTU than the other",
          _netdev("mtu", "2200", "mlx5_9"), excludes=("mtu-small", "netdev-down")),
    fault("mtu-small", "The RoCE ports have an MTU of 1500",
          _netdev("mtu", "1500", *_ROCE), finds=("mtu-mismatch-small",)),
    fault("symbol-errors-rising", "Symbol errors on a port (mlx5_0) are rising",
          _counter("mlx5_0", "counters/symbol_error", _rising(40, 2.0))),
    fault("link-flaps", "The link of a port (mlx5_2) goes down every half hour",
          _counter("mlx5_2", "counters/link_downed", _rising(1, 1800.0))),
    fault("link-flaps-carrier", "The netdev of a NIC (mlx5_9) has lost carrier many times",
          _netdev("carrier_changes", "58", "mlx5_9")),
    fault("out-of-sequence-rising", "Packets arrive out of order at a port (mlx5_9)",
          _counter("mlx5_9", "hw_counters/out_of_sequence", _rising(900, 0.1))),
    fault("local-ack-timeout", "ACK timeouts on a port (mlx5_9) are rising",
          _counter("mlx5_9", "hw_counters/local_ack_timeout_err", _rising(3, 5.0))),
    fault("port-discards-rising", "A port (mlx5_9) discards packets",
          _counter("mlx5_9", "counters/port_xmit_discards", _rising(17, 1.0))),
    fault("receiver-not-ready-rising", "Receivers on a port (mlx5_0) have no buffers ready",
          _counter("mlx5_0", "hw_counters/rnr_nak_retry_err", _rising(5, 3.0))),
    fault("error-counter-full", "The symbol error counter of a port (mlx5_3) is saturated",
          _counter("mlx5_3", "counters/symbol_error", "65535\n")),
    fault("port-counters-missing", "A port (mlx5_1) has no counters",
          lambda tree: tree.remove(f"{port_of(tree.nic('mlx5_1'))}/counters")),
    fault("nic-without-driver", "A NIC (mlx5_6) has no driver", lambda tree: _unbind(tree, _WITHOUT_DRIVER)),
    fault("nic-passed-through", "A NIC (mlx5_7) is reserved for a virtual machine",
          lambda tree: _unbind(tree, _FOR_GUESTS, "vfio-pci"), finds=("nic-without-driver-passed-through",)),
    fault("nic-without-rdma-device", "A NIC (mlx5_5) has no RDMA device",
          lambda tree: _without_rdma(tree, _WITHOUT_RDMA)),
    fault("nic-health-errors", "A NIC (mlx5_2) reports a health error in the kernel log",
          _logs("mlx5_2", "poll_health:825:(pid 0): device's health compromised - reached miss count")),
    fault("nic-power-or-heat", "A NIC (mlx5_3) reports insufficient power in the kernel log",
          _logs("mlx5_3",
                "mlx5_pcie_event:301:(pid 41): Detected insufficient power on the PCIe slot (25W).")),
    fault("link-flaps-log", "The kernel log reports link down on a NIC (mlx5_9)",
          _logs("mlx5_9", "ens9np0: Link down")),
    fault("monitor-causes-log-flood", "A NIC (mlx5_1) rejects a monitor's counter queries",
          _logs("mlx5_1", "mlx5_cmd_out_err:838:(pid 5120): ACCESS_REG(0x805) op_mod(0x1) failed, "
                          "status bad resource(0x5), syndrome (0x305684), err(-22)")),
    fault("fw-resources-exhausted", "A NIC (mlx5_0) failed to register memory",
          _logs("mlx5_0", "reg_mr_callback:104:(pid 5200): async reg mr failed. status -12")),
    fault("nic-firmware-command-failed", "A firmware command to a NIC (mlx5_8) timed out",
          _logs("mlx5_8", "wait_func:1146:(pid 811): QUERY_VPORT_STATE(0x750) timeout. "
                          "Will cause a leak of a command resource")),
    fault("rdma-devices-in-pods", "Healthy: the RDMA devices are in pods' network namespaces",
          _in_pods, finds=(), on="pcie-l40s"),
    fault("bond", "A NIC (mlx5_9) is part of a bond",
          _bond, finds=("single-rail-or-half-rate-bond",), excludes=("roce-gid-wrong-no-v2",)),
    fault("roce-trust-pcp", "RoCE ports trust PCP, so the DSCP of jobs is ignored",
          _trust_pcp, finds=("roce-class-not-lossless",), on="oci-h100"),
)
FAULTS += tuple(
    fault(f"nic-{module.partition('_')[0]}", f"{maker} NICs whose driver does not register DMA-BUFs",
          _needs_own_slots, change_description=_without_dmabuf(id_, prefix, module),
          finds=("dmabuf-nic-driver-lacks-support",), on="pcie-l40s")
    for maker, id_, prefix, module in (
        ("Alibaba", "1ded:107f", "erdma_", "erdma"),
        ("AMD Pensando", "1dd8:1002", "ionic_", "ionic_rdma"),
        ("Broadcom", "14e4:1750", "bnxt_re", "bnxt_re"),
        ("Intel", "8086:1592", "irdma", "irdma"),
    )
)
FAULTS += (
    fault("efa-not-loaded", "The EFA driver is not loaded", unloaded("efa"), on=_EFA),
    fault("nccl-net-plugin-absent", "The job has no aws-ofi-nccl plugin, and NCCL uses TCP",
          change_description=change_fields(system={"plugin": ""}), on=_EFA),
    fault("cxi-ss1-not-loaded", "The Slingshot driver is not loaded",
          unloaded("cxi_user", "cxi_eth", "cxi_ss1"), on=_CXI),
    fault("cxi-user-not-loaded", "cxi_user is not loaded: libfabric finds no NIC",
          unloaded("cxi_user"), on=_CXI),
    fault("efa-peermem-unusable", "The proprietary NVIDIA driver, which efa_nv_peermem refuses",
          refused(EFA_PEERMEM, _REFUSES_PROPRIETARY, 14.2), change_description=_PROPRIETARY, on=_EFA),
    fault("efa-peermem-unusable-refused",
          "efa_nv_peermem was built for another NVIDIA driver, and the kernel refuses it; no DMA-BUF",
          refused(EFA_PEERMEM, symbol_mismatch(EFA_PEERMEM, "nvidia_p2p_get_pages"), 14.2),
          change_description=_WITHOUT_DMABUF, finds=("efa-peermem-unusable",), on=_EFA),
    fault("efa-peermem-unusable-spare", "efa_nv_peermem is not installed; DMA-BUF works",
          unloaded(EFA_PEERMEM), lambda tree: remove_module_file(tree, EFA_PEERMEM),
          finds=("efa-peermem-unusable",), on=_EFA),
    fault("efa-peermem-symbol-mismatch",
          "efa_nv_peermem was built for another NVIDIA driver, but loads nevertheless",
          logged("efa_nv_peermem: no symbol version for nvidia_p2p_dma_unmap_pages", 14.2),
          logged("EFA NV Peermem v1.2.2", 14.3, 6), on=_EFA),
    fault("cxi-without-gpu-support",
          "cxi_ss1 was built without NVIDIA's headers, and the NVIDIA driver is proprietary",
          remove_path(CXI_GPU_PARAMETER), logged("cxi_ss1: Nvidia GPU P2P not supported", 3010.0, 6),
          change_description=_PROPRIETARY, on=_CXI),
)
