"""Faults of NICs and their ports; of other vendors also modules, peer memory and the network plugin."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.jobs.pods import LOGS
from probes.facts.kernel.modules import EFA_PEERMEM
from probes.facts.rdma.port_health import PORT_DATA
from probes.facts.rdma.roce import CONF
from probes.host.protocol import CommandOutput
from probes.simulation.faults.fault import (
    ChangeDescription,
    Faults,
    as_change,
    bind,
    change_devices,
    change_fields,
    described,
    empty_gid,
    fault,
    refused,
    replace_content,
)
from probes.simulation.node.devices.network import lldp_netdevs, set_qos
from probes.simulation.node.devices.pci import add_function
from probes.simulation.node.devices.ports import netdev_of, port_of, set_keys
from probes.simulation.node.jobs.processes import (
    FIRST_RANK,
    POD_UID,
    add_given_devices,
    add_rank,
    library_directory,
    put_in_container,
)
from probes.simulation.node.jobs.traffic import change_count
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Content, PlacedNic, Refusal, Tree
from probes.simulation.node.modules.loading import INVALID, symbol_mismatch

_ROCE = ("mlx5_4", "mlx5_9")
_HALF_RATES = {
    "800": "400 Gb/sec (4X NDR)",
    "400": "200 Gb/sec (4X HDR)",
    "200": "100 Gb/sec (4X EDR)",
    "100": "50 Gb/sec (2X EDR)",
}
_WITHOUT_ECN = {f"ecn/roce_rp/enable/{priority}": "0" for priority in range(8)}
_EFA = "aws-p5"  # a node with NICs of AWS
_REFUSES_PROPRIETARY = Refusal(INVALID.error, ((6, "efa_nv_peermem: Nvidia proprietary is unsupported"),))
_WITHOUT_DMABUF = change_fields(gpudirect={"dmabuf": False})
_PROPRIETARY = change_fields(driver={"flavor": "proprietary"}, gpudirect={"dmabuf": False})

FAULTS = Faults()


def _compute_nic(tree: Tree, name: str) -> PlacedNic:
    """Return the NIC of this name, else the compute NIC in its place: EFAs are named by their slot."""
    named = next((nic for nic in tree.nics if nic.name == name), None)
    return named or tree.compute_nics[int(name.rpartition("_")[2]) % len(tree.compute_nics)]


@as_change
def _set_ports(tree: Tree, ports: Mapping[str, Mapping[str, str]]) -> None:
    """Change files of ports, by the NIC."""
    for name, files in ports.items():
        for file, value in files.items():
            replace_content(tree, f"{port_of(_compute_nic(tree, name))}/{file}", f"{value}\n")


@FAULTS.fault("half-rate", "A port (mlx5_2) runs at half its rate", finds=("single-rail-or-half-rate",))
def _half_rate(tree: Tree) -> None:
    """Halve the rate of one port, and its traffic."""
    port = port_of(_compute_nic(tree, "mlx5_2"))
    whole = tree.text(f"{port}/rate").partition(" ")[0]
    if whole in _HALF_RATES:
        _slow_port("mlx5_2", _HALF_RATES[whole], 2)(tree)


@as_change
def _set_keys(tree: Tree, ports: Mapping[str, list[str]]) -> None:
    """Set the partition keys of InfiniBand ports, by the NIC or "all", from index 0 on."""
    for name, keys in ports.items():
        for nic in tree.nics if name == "all" else (_compute_nic(tree, name),):
            if f"{port_of(nic)}/pkeys" in tree.directories:
                set_keys(tree, nic, keys)


@as_change
def _slow_port(tree: Tree, name: str, rate: str, divisor: int) -> None:
    """Set the rate of a port, and divide its traffic."""
    _set_ports({name: {"rate": rate}})(tree)
    for counter in PORT_DATA:
        change_count(tree, _compute_nic(tree, name), counter, lambda count, _: count // divisor)


@as_change
def _set_counters(tree: Tree, ports: Mapping[str, Mapping[str, Any]]) -> None:
    """Change counters of ports, by the NIC: to a text, or to (start, seconds until each increment)."""
    for name, counters in ports.items():
        for counter, value in counters.items():
            content = value if isinstance(value, str) else _rising(*value)
            replace_content(tree, f"{port_of(tree.nic(name))}/{counter}", content)


@as_change
def _set_temperatures(tree: Tree, nics: Mapping[str, Mapping[str, float]]) -> None:
    """Change temperatures by NIC and label, °C."""
    for name, celsius in nics.items():
        directory = f"{_compute_nic(tree, name).path}/hwmon"
        labels = [path for path in tree.files if path.startswith(directory) and path.endswith("_label")]
        for path in labels:
            if (value := celsius.get(tree.text(path).strip())) is not None:
                for name in ("_input", "_highest"):
                    replace_content(tree, path.replace("_label", name), f"{round(value * 1000)}\n")


# mlxlink prints so of a healthy module (scitix/sichek).
_MODULE_INFO = {
    **{"Temperature [C]": "54 [-5..75]", "Bias Current [mA]": "8.380,8.380,8.380,8.380 [2..15]"},
    "Voltage [mV]": "3261.2 [2970..3630]",
    "Rx Power Current [dBm]": "1.886,1.989,2.281,1.976 [-10.41..6]",
    "Tx Power Current [dBm]": "1.562,1.427,1.559,1.761 [-8.508..5]",
    **{"Identifier": "OSFP", "Module State": "Ready state", "Module FW Fault": "0"},
}


@as_change
def _answer_mlxlink(tree: Tree, nics: Mapping[str, Mapping[str, str]]) -> None:
    """Install mlxlink, which answers as for root; `nics`: values that differ, by the NIC."""
    by_bdf = {tree.nic(name).bdf: dict(values) for name, values in nics.items()}

    def answer(argv: tuple[str, ...], seconds: float) -> str:
        serial = f"MT2312VS{zlib.crc32(argv[2].encode()) % 10**5:05}"
        values = {"Vendor Serial Number": serial} | _MODULE_INFO | by_bdf.get(argv[2], {})
        sections = {"Operational Info": {"Width": "4x"}, "Module Info": values}
        return json.dumps({"result": {"output": sections}, "status": {"code": 0, "message": "success"}})

    tree.commands["mlxlink"] = answer
    tree.add("/usr/bin/mlxlink", "")


def _rising(start: int, seconds_each: float) -> Content:
    return lambda seconds: f"{_risen(start, seconds_each, seconds):.0f}\n"


@as_change
def _set_netdevs(tree: Tree, netdevs: Mapping[str, Mapping[str, str]]) -> None:
    """Change files of netdevs, by the NIC."""
    for name, files in netdevs.items():
        nic = tree.nic(name)
        for file, value in files.items() if f"{nic.path}/net" in tree.directories else ():
            replace_content(tree, f"{nic.path}/net/{netdev_of(tree, nic)}/{file}", f"{value}\n")


@as_change
def _set_ethtool(tree: Tree, netdevs: Mapping[str, Mapping[str, Any]]) -> None:
    """Change counters of netdevs, by the NIC: to (start, seconds until each increment)."""
    for name, counters in netdevs.items():
        nic = tree.nic(name)
        netdev = netdev_of(tree, nic) if f"{nic.path}/net" in tree.directories else ""
        if netdev in tree.ethtool:
            risen = {counter: partial(_risen, *value) for counter, value in counters.items()}
            tree.ethtool[netdev] = tree.ethtool[netdev] | risen


def _risen(start: int, seconds_each: float, seconds: float) -> float:
    return start + seconds // seconds_each


def _without_ipoib(tree: Tree) -> None:
    for nic in tree.nics:
        if nic.kind.layer == "InfiniBand" and f"{nic.path}/net" in tree.directories:
            tree.remove(f"/sys/class/net/{netdev_of(tree, nic)}")
            tree.remove(f"{nic.path}/net")


@as_change
def _set_fec(tree: Tree, modes: Mapping[str, str]) -> None:
    """Change the FEC mode of netdevs, by the NIC."""
    for name, mode in modes.items():
        nic = tree.nic(name)
        if f"{nic.path}/net" in tree.directories and netdev_of(tree, nic) in tree.fec:
            tree.fec[netdev_of(tree, nic)] = mode


@as_change
def _lose_carrier(tree: Tree, name: str) -> None:
    _set_netdevs({_compute_nic(tree, name).name: {"operstate": "down"}})(tree)


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


@as_change
def _without_rdma(tree: Tree, name: str) -> None:
    _elsewhere(tree, name)
    for path in [path for path, text in tree.files.items() if text == f"{name}\n" and "/uverbs" in path]:
        tree.remove(path.rpartition("/")[0])


@as_change
def _set_drivers(tree: Tree, drivers: Mapping[str, str]) -> None:
    """Bind NICs to other drivers, or to none ("")."""
    for name, driver in drivers.items():
        nic = tree.nic(name)
        _without_rdma(name)(tree)
        if f"{nic.path}/net" in tree.directories:
            tree.remove(f"/sys/class/net/{netdev_of(tree, nic)}")
            tree.remove(f"{nic.path}/net")
        bind(tree, nic.path, driver)


def _in_pods(tree: Tree, is_root: bool = False) -> None:
    """Move all RDMA devices to the network namespace of a pod, as rdma-cni does; root sees them there."""
    for number, nic in enumerate(tree.nics):
        if is_root:
            tree.remove(f"/sys/class/infiniband/{nic.name}")
            base = f"{nic.path}/infiniband/{nic.name}"
            tree.link(f"/proc/{FIRST_RANK}/root/sys/class/infiniband/{nic.name}", base)
        else:
            _elsewhere(tree, nic.name)
        tree.link(f"/sys/class/infiniband_verbs/uverbs{number}/device", nic.path)
        name = f"mlx5_core.rdma.{number}"
        tree.add(f"{nic.path}/{name}/uevent", "")
        tree.link(f"{nic.path}/{name}/driver", "/sys/bus/auxiliary/drivers/mlx5_ib.rdma")
        tree.link(f"/sys/bus/auxiliary/devices/{name}", f"{nic.path}/{name}")
    tree.commands["rdma"] = lambda argv, seconds: "netns exclusive copy-on-fork on\n"
    tree.link("/proc/40000/ns/net", "net:[4026531840]")
    for program in tree.programs:
        put_in_container(tree, program.pid)
        tree.link(f"/proc/{program.pid}/ns/net", "net:[4026533001]")
        environ = tree.files[f"/proc/{program.pid}/environ"]
        assert isinstance(environ, bytes)
        rest = [each for each in environ.split(b"\0") if not each.startswith(b"SLURM_")]
        tree.add(f"/proc/{program.pid}/environ", b"\0".join(rest))
    tree.directory(f"{LOGS}/team_trainer-0_{POD_UID}")
    if is_root:
        add_given_devices(tree)


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
def _set_rails(tree: Tree, settings: Mapping[str, int]) -> None:
    """Set IPv4 settings of all netdevs."""
    for path in [path for path in tree.files if path.startswith(f"{CONF}/")]:
        key = path.rpartition("/")[2]
        if key in settings:
            tree.add(path, f"{settings[key]}\n")


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


@as_change
def _unaddress(tree: Tree, name: str) -> None:
    """Take the IPv4 address from a NIC: its route and its GIDs."""
    netdev = netdev_of(tree, tree.nic(name))
    lines = tree.text("/proc/net/route").splitlines(True)
    tree.add("/proc/net/route", "".join(line for line in lines if line.split()[0] != netdev))
    _gids(name, lambda index: index < 2)(tree)


# NVIDIA/dgx-spark-playbooks pull request 108 measured 13.23 Gb/s with a link at full rate.
_DEGRADED_GBPS = 13.23


def _a_share(usual_gbps: float, count: int, seconds: float) -> int:
    """Return what such a NIC has counted where a job would have moved `count`."""
    return round(count * _DEGRADED_GBPS / usual_gbps)


@FAULTS.fault(
    "spark-degraded-initialization",
    "The NIC was not fully initialized: 13 Gb/s with links at full rate (gdrtop bench --sweep --ssh node2)",
    finds=(),
    on="dgx-spark",
)
def _degraded(tree: Tree) -> None:
    """Let every function of the NIC carry little, whose links and counters look healthy."""
    for nic in tree.nics:
        tree.most_gbps[nic.name] = _DEGRADED_GBPS
        for counter in PORT_DATA:
            change_count(tree, nic, counter, partial(_a_share, nic.kind.gbps))


def _in_one_subnet(description: NodeDescription) -> NodeDescription:
    """Give the functions of each port addresses in one subnet."""
    return change_fields(
        nic={kind: replace(nic, address="192.168.100.1{number}/24") for kind, nic in description.nic.items()}
    )(description)


def _needs_own_slots(tree: Tree) -> None:
    """Refuse nodes whose NVSwitches are managed through a ConnectX: their NICs are those of the board."""
    if tree.bridges:
        raise LookupError


@as_change
def _set_nic_files(tree: Tree, files: Mapping[str, str]) -> None:
    """Change files of the RDMA devices of all compute NICs."""
    for nic in tree.compute_nics:
        for file, value in files.items():
            replace_content(tree, f"{nic.path}/infiniband/{nic.name}/{file}", f"{value}\n")


@as_change
def _add_virtual_function(tree: Tree, name: str) -> None:
    """Add a virtual function of a NIC that is passed through to a guest."""
    nic = _compute_nic(tree, name)
    path = f"{nic.path[:-1]}2"
    add_function(tree, path, "15b3:101e", "020700", nic.numa, nic.kind.link, "15b3:0041", "vfio-pci")
    tree.link(f"{path}/physfn", f"../{nic.bdf}")
    if f"{nic.path}/config" in tree.files:
        tree.add(f"{path}/config", tree.files[f"{nic.path}/config"])


def _post_by_gpu(tree: Tree) -> None:
    """Add a job that uses NVSHMEM's IBGDA."""
    folder = library_directory(tree)
    libraries = (f"{folder}/libnvshmem_host.so.3.3.9", f"{folder}/nvshmem_transport_ibgda.so.3.0.0")
    add_rank(tree, 46600, 0, {"NVSHMEM_IB_ENABLE_IBGDA": "1"}, libraries)


def _swap_cables(tree: Tree) -> None:
    """Swap the cables of the first two NICs: of bonds, those of their first ports."""
    first, second = (lldp_netdevs(tree, nic)[0] for nic in tree.compute_nics[:2])
    heard = tree.neighbors
    heard[first], heard[second] = heard[second], heard[first]


@as_change
def _set_neighbor(tree: Tree, number: int, /, **fields: str) -> None:
    """Change what the switch port says at the other end of a NIC's first cable."""
    netdev = lldp_netdevs(tree, tree.compute_nics[number])[0]
    neighbor = tree.neighbors[netdev]
    tree.neighbors[netdev] = {**neighbor, "port": {**neighbor["port"], **fields}}


def _lldp_denied(tree: Tree) -> None:
    text = "[WARN/control] unable to connect to socket /run/lldpd.socket: Permission denied\n"
    tree.commands["lldpctl"] = lambda argv, seconds: CommandOutput(argv, 1, "", text)


# fmt: off
FAULTS += described(
    "nic", _in_one_subnet, unaddressed=_unaddress,
    port=_set_ports, keys=_set_keys, netdev=_set_netdevs, counter=_set_counters, no_carrier=_lose_carrier,
    ethtool=_set_ethtool, fec=_set_fec, celsius=_set_temperatures, mlxlink=_answer_mlxlink,
    rails=_set_rails, unset_in_conf=_unset_in_conf, driver=_set_drivers, without_rdma=_without_rdma,
    nic_files=_set_nic_files, virtual_function_of=_add_virtual_function,
)
FAULTS += (
    fault("virtual-port-without-guid", "The port of a virtual function (mlx5_0) has no GUID",
          _set_ports({"mlx5_0": {
              "state": "1: DOWN", "phys_state": "5: LinkUp", "lid": "0xffff", "sm_lid": "0x0"}}),
          lambda tree: _zero_guid(tree, _compute_nic(tree, "mlx5_0")),
          finds=("ib-port-not-active-link-up",), on="azure-nd-h100"),
    fault("ipoib-missing", "ib_ipoib is not loaded, so InfiniBand ports have no netdev", _without_ipoib,
          finds=()),
    fault("nic-firmware-mismatch", "A NIC (mlx5_2) has older firmware than the others",
          lambda tree: replace_content(
              tree, f"{tree.nic('mlx5_2').path}/infiniband/mlx5_2/fw_ver", "28.39.1002\n")),
    fault("roce-lossless-off", "ECN is off on the RoCE ports",
          _set_netdevs(dict.fromkeys(_ROCE, _WITHOUT_ECN))),
    fault("one-lane", "A port (mlx5_7) runs on one lane of four",
          _slow_port("mlx5_7", "100 Gb/sec (1X NDR)", 4), finds=("single-rail-or-half-rate-one-lane",),
          excludes=("nic-passed-through",)),
    fault("roce-gid-wrong-namespace", "The GID table of a RoCE port is empty",
          lambda tree: _gids(tree.nics[0].name, lambda _: False)(tree), on="pcie-l40s"),
    fault("roce-gid-wrong-no-v2", "A RoCE port (mlx5_9) has only RoCE v1 GIDs",
          _gids("mlx5_9", lambda index: index % 2 == 0)),
    fault("roce-gid-wrong-link-local", "A RoCE port (mlx5_4) has only link-local GIDs",
          _gids("mlx5_4", lambda index: index < 2), excludes=("netdev-down",)),
    fault("port-counters-missing", "A port (mlx5_1) has no counters",
          lambda tree: tree.remove(f"{port_of(tree.nic('mlx5_1'))}/counters")),
    fault("rdma-devices-in-pods", "Healthy: the RDMA devices are in pods' network namespaces",
          _in_pods, finds=(), on="pcie-l40s"),
    fault("rdma-devices-in-pods-root", "Healthy: the same, read as root, who sees them in the pods",
          lambda tree: _in_pods(tree, is_root=True), finds=(), on="pcie-l40s"),
    fault("bond", "A NIC (mlx5_9) is part of a bond",
          _bond, finds=("single-rail-or-half-rate-bond",), excludes=("roce-gid-wrong-no-v2",)),
    fault("cable-swapped", "The cables of two NICs (mlx5_bond_0, mlx5_bond_1) are swapped",
          _swap_cables, finds=("cable-port-description",), on="bare-roce"),
    fault("cable-port-description", "The switch port of a NIC (mlx5_bond_0) is described as another node's",
          _set_neighbor(0, descr="To-bare-roce2-eth0"), on="bare-roce"),
    fault("frame-size-small", "The switch port of a NIC (mlx5_bond_2) forwards no jumbo frames",
          _set_neighbor(2, mfs="1522"), finds=("cable-frame-size",), on="bare-roce"),
    fault("lldp-not-readable", "Healthy: this user may not ask lldpd where cables end",
          _lldp_denied, finds=(), on="bare-roce"),
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
        ("Azure", "1414:00ba", "mana_", "mana_ib"),
    )
)
FAULTS += (
    fault("thor2-too-old-for-ibgda", "A job's GPUs post to Broadcom NICs, whose firmware is too old for it",
          _needs_own_slots, _set_nic_files({"fw_ver": "231.1.162.1"}), _post_by_gpu,
          change_description=_without_dmabuf("14e4:1750", "bnxt_re", "bnxt_re"),
          finds=("known-bad-combination",), on="pcie-l40s"),
    fault("efa-peermem-unusable", "The proprietary NVIDIA driver, which efa_nv_peermem refuses",
          refused(EFA_PEERMEM, _REFUSES_PROPRIETARY, 14.2), change_description=_PROPRIETARY, on=_EFA),
    fault("efa-peermem-unusable-refused",
          "efa_nv_peermem was built for another NVIDIA driver, and the kernel refuses it; no DMA-BUF",
          refused(EFA_PEERMEM, symbol_mismatch(EFA_PEERMEM, "nvidia_p2p_get_pages"), 14.2),
          change_description=_WITHOUT_DMABUF, finds=("efa-peermem-unusable",), on=_EFA),
)
