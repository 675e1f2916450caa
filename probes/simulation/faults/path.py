"""Faults of the paths from NIC to GPU memory: nvidia_peermem, DMA-BUF, Data Direct."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import CONNECTX
from probes.queries.modules import DRIVER_VERSION
from probes.simulation.faults.fault import as_change, change_devices, change_fields, described, refused
from probes.simulation.faults.modules import other_kernel, take_driver_from_disk
from probes.simulation.node.jobs.processes import end_program
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Refusal, Tree, log, module_path
from probes.simulation.node.modules.loading import (
    insert_module,
    refuse_module,
    remove_modules,
    symbol_mismatch,
)
from probes.simulation.node.modules.modules import (
    OFED_SYMVERS,
    OTHER_VERSIONS,
    add_module,
    add_module_file,
    modinfo_fields,
    set_modinfo,
    srcversion_of,
    symvers,
    version_table,
)
from probes.simulation.node.system.services import WANTS

_OPTIONS = "/etc/modprobe.d/nvidia-peermem.conf"
_PARAMETERS = "/sys/module/nvidia_peermem/parameters"
_UNKNOWN_SYMBOL = Refusal(
    "Unknown symbol in module, or unknown parameter (see dmesg)",
    ((4, "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"),),
)
_SYMBOLS = "alias symbol:ib_register_peer_memory_client ib_core\nalias symbol:nvidia_p2p_get_pages nvidia\n"


def _edit_dependencies(tree: Tree, change: Callable[[str], str]) -> None:
    path = f"/lib/modules/{tree.description.kernel}/modules.dep"
    text = tree.files[path]
    assert isinstance(text, str)
    tree.add(path, "".join(change(line) for line in text.splitlines(True)))


def _without_symbols(tree: Tree) -> None:
    node = tree.description
    own, nvidia = module_path(node, PEERMEM), module_path(node, "nvidia")
    _edit_dependencies(tree, lambda line: f"{own}: {nvidia}\n" if line.startswith(f"{own}:") else line)
    set_modinfo(tree, PEERMEM, "depends", "nvidia")


def _symbol_of_other_ofed(tree: Tree) -> None:
    refuse_module(tree, PEERMEM, symbol_mismatch(PEERMEM, PEER_MEMORY_SYMBOL), 15.1)
    table, path = version_table(tree), modinfo_fields(tree, PEERMEM).get("filename", "")
    if path in table.needed:
        table.needed[path] = OTHER_VERSIONS
        del tree.refusals[PEERMEM]  # the versions explain it, until they are the same


def _ofed_replaced(tree: Tree) -> None:
    """Exchange OFED's files on disk; the loaded modules stay until the next boot."""
    path = modinfo_fields(tree, "ib_core").get("filename", "")
    version_table(tree).exported[path] = OTHER_VERSIONS
    set_modinfo(tree, "ib_core", "srcversion", srcversion_of("ib_core of another OFED"))
    tree.add(OFED_SYMVERS, symvers(OTHER_VERSIONS))


def _inbox_core(tree: Tree) -> None:
    ofed, inbox = module_path(tree.description, "ib_core"), "kernel/drivers/infiniband/core/ib_core.ko"
    _edit_dependencies(tree, lambda line: line.replace(ofed, inbox))
    set_modinfo(tree, "ib_core", "filename", f"/lib/modules/{tree.description.kernel}/{inbox}")


@as_change
def _set_parameters(tree: Tree, parameters: Mapping[str, str]) -> None:
    """Load nvidia_peermem with parameters, now and at the next boot."""
    for name, value in parameters.items():
        tree.add(_OPTIONS, f"options nvidia-peermem {name}={value}\n")
        tree.add(f"{_PARAMETERS}/{name}", f"{value}\n")


@as_change
def _install_ofed(tree: Tree, release: str) -> None:
    """Install another release of OFED."""
    tree.commands["ofed_info"] = lambda argv, seconds: f"{release}:\n"


def _unneeded(tree: Tree) -> None:
    """Add an old configuration to a node with DMA-BUF: OFED's symbols, and a unit that runs modprobe."""
    tree.add(f"/lib/modules/{tree.description.kernel}/modules.symbols", _SYMBOLS)
    set_modinfo(tree, PEERMEM, "depends", "nvidia,ib_core")
    unit = "/etc/systemd/system/load-peermem.service"
    tree.add(unit, "[Service]\nType=oneshot\nExecStart=/sbin/modprobe nvidia-peermem\n")
    tree.link(f"{WANTS}/load-peermem.service", unit)
    tree.live_modules.append(PEERMEM)
    version = tree.description.driver.version
    add_module(tree, PEERMEM, version, srcversion_of(PEERMEM))


def _old_module(tree: Tree) -> None:
    _old_package(tree)
    tree.live_modules.append("nv_peer_mem")
    add_module(tree, "nv_peer_mem", "1.3-0", srcversion_of("nv_peer_mem"))


def _old_package(tree: Tree) -> None:
    add_module_file(tree, "nv_peer_mem")
    set_modinfo(tree, "nv_peer_mem", "version", "1.3-0")
    tree.add("/etc/init.d/nv_peer_mem", "#!/bin/bash\n")


_take_driver_from_disk = take_driver_from_disk
_unknown_symbol = refused(PEERMEM, _UNKNOWN_SYMBOL, 15.2)


def _for_other_kernel(tree: Tree) -> None:
    path = f"/lib/modules/{other_kernel(tree)}/modules.dep"
    tree.add(path, f"{module_path(tree.description, PEERMEM)}:\n")


def _invalid_parameter(tree: Tree) -> None:
    tree.add(_OPTIONS, "options nvidia-peermem peerdirect_support=2\n")
    insert_module(tree, PEERMEM, {"peerdirect_support": "2"}, 15.3)


def _says_proprietary(tree: Tree) -> None:
    text = tree.text(DRIVER_VERSION)
    tree.add(DRIVER_VERSION, text.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module"))


def _exchange_modules(tree: Tree) -> None:
    for program in list(tree.programs):
        end_program(tree, program.pid)
    remove_modules(tree, PEERMEM)
    _old_module(tree)


def _leak(tree: Tree) -> None:
    for name in [name for name in tree.directories.get("/proc", set()) if name.isdecimal()]:
        tree.remove(f"/proc/{name}")
    tree.directory("/proc/1/fd")
    tree.add("/proc/1/comm", "systemd\n")
    tree.add("/proc/1/cmdline", "/sbin/init\0")
    tree.references[PEERMEM, "job"] = lambda seconds: 12


def _without_either(description: NodeDescription) -> NodeDescription:
    live = tuple(name for name in description.modules.live if name != PEERMEM)
    on_disk = (*description.modules.on_disk, PEERMEM)
    return change_fields(
        driver={"flavor": "proprietary"}, modules={"live": live, "on_disk": on_disk}, gpudirect={"regions": 0}
    )(description)


def _driver_580(description: NodeDescription) -> NodeDescription:
    """Return the node with a driver that checks the PCI topology: its own one, or 580."""
    if description.driver.numbers >= (580, 65, 6):
        return description
    return change_fields(driver={"version": "580.159.03", "cuda": "13.0"})(description)


def _connectx_3(description: NodeDescription) -> NodeDescription:
    """Replace the NICs by ConnectX-3 with their last OFED: only nvidia_peermem works."""
    modules = description.modules
    return change_fields(
        nic={
            kind: replace(nic, id="15b3:1003", hca="MT4099", firmware="2.42.5000", board="MT_1090120019")
            for kind, nic in description.nic.items()
        },
        gpudirect={"dmabuf": False},
        modules={
            "live": tuple(name.replace("mlx5_", "mlx4_") for name in modules.live),
            "on_disk": (*modules.on_disk, *CONNECTX.modules),
        },
    )(change_devices(lambda device: device.replace(" mlx5_", " mlx4_"))(description))


def _refuse_importer(tree: Tree) -> None:
    """Log what this driver writes when a NIC driver attaches without peer-to-peer support (nv-dmabuf.c)."""
    if tree.description.driver.numbers < (580, 65, 6):
        log(tree, "NVRM: failed to map dynamic attachment with no P2P support", 612.4, 3)
    else:
        log(tree, "NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page", 612.4, 3)


def _dma_unbound(tree: Tree) -> None:
    for path in tree.dma_functions.values():
        tree.add(f"{path}/uevent", tree.text(f"{path}/uevent").replace("DRIVER=mlx5_ib\n", ""))


def _without_dma(description: NodeDescription) -> NodeDescription:
    """Leave out the DMA functions, as a hypervisor or firmware may."""
    return change_devices(lambda device: None if device.startswith("dma ") else device)(description)


FAULTS = tuple(described("path", globals(), ofed=_install_ofed, peermem_parameter=_set_parameters))
