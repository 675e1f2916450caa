"""Faults of NICs and their ports; of other vendors also modules, peer memory and the network plugin."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
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
    as_change,
    bind,
    change_devices,
    change_fields,
    described,
    empty_gid,
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

_HALF_RATES = {
    "800": "400 Gb/sec (4X NDR)",
    "400": "200 Gb/sec (4X HDR)",
    "200": "100 Gb/sec (4X EDR)",
    "100": "50 Gb/sec (2X EDR)",
}
_efa_refuses_proprietary = refused(
    EFA_PEERMEM, Refusal(INVALID.error, ((6, "efa_nv_peermem: Nvidia proprietary is unsupported"),)), 14.2
)
_efa_of_other_driver = refused(EFA_PEERMEM, symbol_mismatch(EFA_PEERMEM, "nvidia_p2p_get_pages"), 14.2)


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


def _without_ecn(tree: Tree) -> None:
    off = {f"ecn/roce_rp/enable/{priority}": "0" for priority in range(8)}
    _set_netdevs({"mlx5_4": off, "mlx5_9": off})(tree)


def _without_counters(tree: Tree) -> None:
    tree.remove(f"{port_of(tree.nic('mlx5_1'))}/counters")


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


def _zero_guid(tree: Tree) -> None:
    """Set the GUIDs of a virtual function as they are before its host sets them."""
    nic = _compute_nic(tree, "mlx5_0")
    replace_content(tree, f"{nic.path}/infiniband/{nic.name}/node_guid", "0000:0000:0000:0000\n")
    replace_content(tree, f"{port_of(nic)}/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000\n")


@as_change
def _empty_gids(tree: Tree, name: str, first: int, step: int = 1) -> None:
    """Clear entries of a GID table, from one on; without a name, of the first NIC."""
    for index in range(first, 16, step):
        empty_gid(tree, port_of(tree.nic(name) if name else tree.nics[0]), index)


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


@as_change
def _in_pods(tree: Tree, is_root: bool) -> None:
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
    _empty_gids(name, 2)(tree)


# NVIDIA/dgx-spark-playbooks pull request 108 measured 13.23 Gb/s with a link at full rate.
_DEGRADED_GBPS = 13.23


def _a_share(usual_gbps: float, count: int, seconds: float) -> int:
    """Return what such a NIC has counted where a job would have moved `count`."""
    return round(count * _DEGRADED_GBPS / usual_gbps)


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
def _set_nic_files(tree: Tree, nics: Mapping[str, Mapping[str, str]]) -> None:
    """Change files of RDMA devices, by the NIC or "all" compute NICs."""
    for name, files in nics.items():
        for nic in tree.compute_nics if name == "all" else (tree.nic(name),):
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
def _set_neighbor(tree: Tree, number: int, fields: Mapping[str, str]) -> None:
    """Change what the switch port says at the other end of a NIC's first cable."""
    netdev = lldp_netdevs(tree, tree.compute_nics[number])[0]
    neighbor = tree.neighbors[netdev]
    tree.neighbors[netdev] = {**neighbor, "port": {**neighbor["port"], **fields}}


def _lldp_denied(tree: Tree) -> None:
    text = "[WARN/control] unable to connect to socket /run/lldpd.socket: Permission denied\n"
    tree.commands["lldpctl"] = lambda argv, seconds: CommandOutput(argv, 1, "", text)


# fmt: off
FAULTS = tuple(described(
    "nic", globals(), unaddressed=_unaddress,
    port=_set_ports, keys=_set_keys, netdev=_set_netdevs, counter=_set_counters, no_carrier=_lose_carrier,
    ethtool=_set_ethtool, fec=_set_fec, celsius=_set_temperatures, mlxlink=_answer_mlxlink,
    rails=_set_rails, unset_in_conf=_unset_in_conf, driver=_set_drivers, without_rdma=_without_rdma,
    nic_files=_set_nic_files, virtual_function_of=_add_virtual_function,
))
