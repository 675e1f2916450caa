"""Boot a node: kernel options, the modules that udev, systemd and modprobe.d load, and the services.

A simulated node starts like this, and so does the copy of a real node that a forecast starts.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from probes.base.unknown import known
from probes.facts.kernel.modprobe_config import LoadingRules, read_rules
from probes.facts.kernel.modules import PEERMEM
from probes.facts.kernel.release import read_cmdline
from probes.facts.pci.nic_families import EFA, LADDER_DRIVERS, RDMA_MODULE_OF, SLINGSHOT
from probes.facts.system import services
from probes.host.protocol import Host
from probes.queries.kernel_log import IMPORTER
from probes.simulation.commands.catalogue import perform
from probes.simulation.commands.systemctl import MODULES_LOAD
from probes.simulation.node.model.tree import BOOT_MESSAGES, Tree
from probes.simulation.node.modules.loading import MODULES_DISABLED, remove_modules
from probes.simulation.node.modules.modules import read_index
from probes.simulation.node.system.services import stop

_NO_REDIRECTS = re.compile(r"disable_acs_redir=[\\\"]*([0-9a-f:.;]+)")
_BOOT_SECONDS = 20.0
_AGAIN = ("dma-buf attach failed", *IMPORTER, "no symbol version for")  # what the kernel says in each boot
# Drivers that udev loads by the alias of a device on the bus.
_BY_DEVICE = (*LADDER_DRIVERS, "nvidia")
# Loaded by nvidia-modprobe with the first CUDA program, by rdma-core's udev rules, by the cxi driver.
_BY_PROGRAMS = ("nvidia_uvm", "ib_uverbs", "cxi_user")
# Loaded by packages whose rules gdrtop does not know; they are there again if they were there before.
_AS_BEFORE = ("rdma_cm", "rdma_ucm", "ib_umad", "cxi_eth", "efa_nv_peermem", "gdrdrv", "nvidia_fs")
MODULES = (  # each before those that it needs
    *("nvidia_fs", "gdrdrv", "efa_nv_peermem", PEERMEM, "nv_peer_mem", "nvidia_uvm", "nvidia"),
    *("rdma_ucm", "rdma_cm", "ib_umad", *RDMA_MODULE_OF.values(), *EFA.modules, "ib_uverbs", "ib_core"),
    *(*RDMA_MODULE_OF, SLINGSHOT.rdma_module, "cxi_eth", *SLINGSHOT.pci_drivers),
)
"""Modules whose loading a boot decides; others stay as they are."""


def start(host: Host, tree: Tree, drivers: Collection[str], before: Collection[str]) -> None:
    """Do what kernel, udev and systemd do at boot on a tree with its disk in place.

    `drivers`: those of the devices on the PCI bus; `before`: the modules that were loaded before the boot.
    """
    tree.add(MODULES_DISABLED, "0\n")
    cmdline = read_cmdline(host)
    for match in _NO_REDIRECTS.finditer(known(cmdline, "")):
        for port in filter(None, match[1].split(";")):
            _run(host, tree, "setpci", "-s", port, "ECAP_ACS+6.w=0000:000c")
    users = {key: count for key, count in tree.references.items() if key[1] == "job"}
    remove_modules(tree, *MODULES)
    rules, facts = read_rules(host, cmdline), services.probe(host)
    for name in _BY_DEVICE:
        if name in drivers and rules.blacklisted(name) is None:
            _run(host, tree, "modprobe", "-b", name)
    for name in (*_BY_PROGRAMS, *(name for name in _AS_BEFORE if name in before)):
        if _needs_are_met(tree, name, rules):
            _run(host, tree, "modprobe", name)
    installed = {
        name: service
        for name, service in facts.services.items()
        if isinstance(known(service.path, None), str)
    }
    if rules.at_boot and (MODULES_LOAD not in installed or not installed[MODULES_LOAD].masked):
        if MODULES_LOAD in installed:
            _run(host, tree, "systemctl", "restart", MODULES_LOAD)
        else:
            for name in rules.at_boot:
                _run(host, tree, "modprobe", "-b", name)
    for name, service in installed.items():
        if name == MODULES_LOAD:
            continue
        was_active = tree.units.get(name) == "active"
        if name in tree.units:
            stop(tree, name)
        if known(service.enabled, was_active) and not service.masked:
            _run(host, tree, "systemctl", "start", name)
    for module in facts.modprobe:
        _run(host, tree, "modprobe", module)
    tree.references.update({key: count for key, count in users.items() if key[0] in tree.live_modules})


def _needs_are_met(tree: Tree, name: str, rules: LoadingRules) -> bool:
    """Return whether a module's dependencies are loaded: no program loads drivers of absent devices."""
    index = read_index(tree, rules.file_names(MODULES))
    return name in index and set(index[name]) <= set(tree.live_modules)


def _run(host: Host, tree: Tree, *argv: str) -> None:
    perform(host, tree, argv, "", _BOOT_SECONDS)


def forget_running(tree: Tree) -> None:
    """Forget the messages of the boot before and the changes that were to come.

    What the GPU driver has refused to a NIC, it refuses again, and modules are built as before.
    """
    before = tree.kernel_log[len(BOOT_MESSAGES) :]
    tree.kernel_log[len(BOOT_MESSAGES) :] = [line for line in before if any(each in line for each in _AGAIN)]
    tree.planned.clear()
