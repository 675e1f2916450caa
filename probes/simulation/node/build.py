"""Build the tree of a simulated node from its description."""

from __future__ import annotations

import re

from probes.facts.gpudirect_probe import CXI_GPU_PARAMETER
from probes.facts.kernel.release import SMMU_SVA_OPTION
from probes.facts.rdma.devices import EMPTY_GID
from probes.facts.rdma.port_health import RECEIVED, SENT
from probes.facts.system.cpu import IDLE, NUMA_BALANCING, POLICIES
from probes.facts.system.platform import hypervisor_of
from probes.simulation.node.devices.network import (
    add_lldp,
    add_network,
    add_qos,
    add_rails,
    address_of,
    port_netdev,
)
from probes.simulation.node.devices.pci import add_config_space, add_pci
from probes.simulation.node.devices.ports import add_cxi, add_efa, add_ports, traffic_counter
from probes.simulation.node.jobs.processes import add_processes
from probes.simulation.node.jobs.ras import add_ras
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import GIB, PlacedNic, Tree, add_kernel_log
from probes.simulation.node.modules.loading import add_driver_proc
from probes.simulation.node.modules.modules import (
    add_module_files,
    add_module_index,
    add_module_references,
    add_modules,
)
from probes.simulation.node.system.kubernetes import add_kubernetes
from probes.simulation.node.system.services import add_services
from probes.simulation.node.system.software import (
    add_device_files,
    add_driver_libraries,
    add_nccl_files,
    add_software,
)
from probes.simulation.node.system.system import add_slurm, add_system

_CONFIG = """\
CONFIG_MODULES=y
CONFIG_DMA_SHARED_BUFFER=y
CONFIG_INFINIBAND=m
CONFIG_INFINIBAND_USER_MEM=y
CONFIG_INFINIBAND_ON_DEMAND_PAGING=y
# end
"""
# Directories of any node that configuration can be written to.
_USUAL_DIRECTORIES = (
    *("/etc/default/grub.d", "/etc/modprobe.d", "/etc/modules-load.d", "/etc/sysctl.d"),
    *("/etc/systemd/system", "/etc/udev/rules.d", "/root", "/run/systemd/system", "/tmp"),
    *("/usr/local/sbin", "/var/lib", "/var/tmp"),
)


def build_tree(description: NodeDescription, seed: int, boot: int = 1) -> Tree:
    """Build the whole tree, for the node's start number `boot`."""
    tree = Tree(description, seed, boot)
    tree.live_modules = list(description.modules.live)
    _add_platform(tree)
    add_system(tree)
    _add_numa(tree)
    _add_cpus(tree)
    add_pci(tree)
    add_driver_proc(tree, description.driver.version)
    for number, nic in enumerate(tree.cards):
        _add_rdma(tree, nic, number)
    add_modules(tree)
    if "cxi_ss1" in tree.live_modules:  # built with NVIDIA's headers
        tree.add(CXI_GPU_PARAMETER, "Y\n")
    add_module_index(tree)
    add_config_space(tree)
    add_ports(tree)
    add_rails(tree)
    add_qos(tree)
    add_lldp(tree)
    add_kernel_log(tree)
    add_services(tree)
    add_slurm(tree)
    add_nccl_files(tree)
    if description.system.cluster is not None:
        add_kubernetes(tree, description.system.cluster)
    add_module_references(tree)
    add_driver_libraries(tree)
    add_module_files(tree)
    for path in _USUAL_DIRECTORIES:
        tree.directory(path)
    add_device_files(tree, tree.live_modules)
    add_processes(tree)
    add_software(tree)
    add_network(tree)
    add_ras(tree)
    gpus = range(len(tree.gpus))
    tree.mig.update(gpus if description.nvml.mig else ())
    tree.persistent.update(gpus if description.nvml.persistence else ())
    return tree


def _add_platform(tree: Tree) -> None:
    node = tree.description
    names = {"hostname": node.hostname, "osrelease": node.kernel, "arch": node.architecture}
    tree.add_values("/proc/sys/kernel", names | {"modules_disabled": "0"})
    # Recognizable as made up, like the UUIDs of the GPUs.
    tree.add("/proc/sys/kernel/random/boot_id", f"51a01a7e-{tree.seed:04x}-4000-8000-{tree.boot:012x}\n")
    tree.add("/proc/version", f"Linux version {node.kernel} (simulated) #1 SMP\n")
    tree.add("/proc/cmdline", f"{node.cmdline}\n")
    vendor, product = node.product
    firmware = {"sys_vendor": vendor, "product_name": product, "bios_version": "2.1"}
    tree.add_values("/sys/class/dmi/id", firmware)
    tree.add("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    tree.add("/sys/module/module/parameters/sig_enforce", "N\n")
    of_arm = f"{SMMU_SVA_OPTION}=y\n" if node.architecture == "aarch64" else ""
    tree.add(f"/boot/config-{node.kernel}", of_arm + _CONFIG)
    tree.directory("/sys/class/iommu")
    if node.iommu:
        for number in range(len(node.numa)):
            tree.directory(f"/sys/class/iommu/{node.iommu_kind}{number}")


def _add_numa(tree: Tree) -> None:
    nodes = tree.description.numa
    base = "/sys/devices/system/node"
    tree.add(f"{base}/online", f"0-{len(nodes) - 1}\n" if len(nodes) > 1 else "0\n")
    for number, numa in enumerate(nodes):
        tree.add(f"{base}/node{number}/cpulist", f"{numa.cpus}\n")
        tree.add(f"{base}/node{number}/distance", " ".join(map(str, numa.distances)) + "\n")
        kib = numa.memory_gib * GIB // 1024
        tree.add(f"{base}/node{number}/meminfo", f"Node {number} MemTotal:       {kib} kB\n")
    kib = sum(numa.memory_gib for numa in nodes) * GIB // 1024
    tree.add("/proc/meminfo", meminfo(kib, kib * 4 // 5, 65536, 61440))


def _add_cpus(tree: Tree) -> None:
    """Add the settings of the CPUs, a clock for each NUMA node; a virtual machine controls none."""
    node = tree.description
    tree.add(NUMA_BALANCING, "0\n")
    if hypervisor_of(" ".join(node.product)) is not None:
        return
    is_arm = node.architecture == "aarch64"
    clock = {
        "scaling_driver": "cppc_cpufreq" if is_arm else "intel_pstate",
        "scaling_governor": "performance",
    }
    if not is_arm:
        clock["energy_performance_preference"] = "performance"
    clock |= dict.fromkeys(("scaling_max_freq", "cpuinfo_max_freq"), "3447000" if is_arm else "3800000")
    for numa in (numa for numa in node.numa if numa.cpus):
        tree.add_values(f"{POLICIES}/policy{re.split('[-,]', numa.cpus)[0]}", clock)
    for number, (name, exit_us) in enumerate(
        (("WFI", 0),) if is_arm else (("POLL", 0), ("C1", 1), ("C6", 290))
    ):
        tree.add_values(f"{IDLE}/state{number}", {"name": name, "latency": exit_us, "disable": 0})


def meminfo(total_kib: int, available_kib: int, cma_kib: int, free_cma_kib: int) -> str:
    """Return the lines of /proc/meminfo that gdrtop reads."""
    sizes = {
        "MemTotal": total_kib,
        "MemAvailable": available_kib,
        "CmaTotal": cma_kib,
        "CmaFree": free_cma_kib,
    }
    return "".join(f"{f'{name}:':<16}{kib:>8} kB\n" for name, kib in sizes.items())


def _add_rdma(tree: Tree, nic: PlacedNic, number: int) -> None:
    tree.link(f"{nic.path}/driver", f"../../../../bus/pci/drivers/{nic.kind.driver}")
    if nic.kind.driver == "cxi_ss1":
        add_cxi(tree, nic, number)
        return
    base = f"{nic.path}/infiniband/{nic.name}"
    tree.link(f"/sys/class/infiniband/{nic.name}", f"../../{base.removeprefix('/sys/')}")
    tree.link(f"{base}/device", "../..")
    tree.add(f"/sys/class/infiniband_verbs/uverbs{number}/ibdev", f"{nic.name}\n")
    tree.add(f"/sys/class/infiniband_verbs/uverbs{number}/dev", f"231:{192 + number}\n")
    guid = f"51a0:1a7e:0000:{number:04x}"
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": nic.kind.layer}
    tree.add_values(f"{base}/ports/1", port | ({"rate": nic.kind.rate} if nic.kind.rate else {}))
    tree.add_values(base, {"node_guid": guid})
    if nic.kind.driver == "efa":
        add_efa(tree, nic, guid)
        return
    values = {
        "node_type": "1: CA",
        "fw_ver": nic.kind.firmware,
        "hca_type": nic.kind.hca,
        "board_id": nic.kind.board,
        "sys_image_guid": guid,
        "ports/1/lid": f"0x{number + 1:x}" if nic.kind.layer == "InfiniBand" else "0x0",
    }
    tree.add_values(base, values)
    own = f"ib{number}" if nic.kind.layer == "InfiniBand" else f"ens{number}np0"
    own = f"ens{number}f0np0" if nic.kind.bonded_ports > 1 else port_netdev(nic) or own
    tree.add(f"{nic.path}/net/{own}/dev_port", "0\n")
    _gids(tree, nic, guid, port_netdev(nic) or own)
    for name, share in ((SENT, 1.0), (RECEIVED, 0.99)):
        tree.add(f"{base}/ports/1/counters/{name}", traffic_counter(tree, nic, name, share, 32))
    tree.add_values(f"{base}/ports/1/counters", {"port_xmit_packets": 0, "port_rcv_packets": 0})


def _gids(tree: Tree, nic: PlacedNic, guid: str, netdev: str) -> None:
    port, layer, address = f"{nic.path}/infiniband/{nic.name}/ports/1", nic.kind.layer, address_of(nic)
    filled = [f"fe80:0000:0000:0000:{guid}"]
    if layer == "Ethernet":
        digits = "0a000001" if address is None else address.ip.packed.hex()
        mapped = f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}"
        filled = [filled[0], filled[0], mapped, mapped]
    for index in range(16 if layer == "Ethernet" else 8):
        tree.add(f"{port}/gids/{index}", f"{EMPTY_GID}\n")
    for index, gid in enumerate(filled):
        tree.add(f"{port}/gids/{index}", f"{gid}\n")
        tree.add(f"{port}/gid_attrs/types/{index}", "RoCE v2\n" if index % 2 else "IB/RoCE v1\n")
        if layer == "Ethernet":
            tree.add(f"{port}/gid_attrs/ndevs/{index}", f"{netdev}\n")
