"""Which modules nodes like this one load at boot: a file for modules-load.d(5), and a drop-in for openibd."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.unknown import Reason, Unknown
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.modules import PEERMEM, ModuleState
from probes.facts.rdma.nic_driver import NicStack
from probes.plans.load_modules import OWN_FILE, path_modules, peermem_options
from probes.setup.manifests.manifest_text import comment_lines, head
from probes.setup.manifests.request import DriverOwner, ManifestRequest, Refused, has_nvlink5, nic_stack

OPENIBD_FILE = "/etc/systemd/system/openibd.service.d/10-nvidia-peermem.conf"


def boot_modules(request: ManifestRequest) -> tuple[str, ...] | Refused:
    """Return the modules in load order, or why the host must not load any.

    A module that exists only in the driver's container makes systemd-modules-load fail at boot.
    """
    if request.driver is DriverOwner.OPERATOR:
        return Refused(
            "the GPU Operator installs the driver: its modules are in a container and do not exist when the "
            "host boots; set the path with gdrtop manifest clusterpolicy"
        )
    names = path_modules(request.situation.examination)
    if isinstance(names, Unknown):
        return Refused(f"this node's devices are unknown: {names}")
    modules = [name for name in names if name != PEERMEM]
    if has_nvlink5(request.situation):
        modules.append("ib_umad")
    if request.path is GdrPath.PEERMEM:
        modules.append(PEERMEM)
    elif request.path is GdrPath.EFA:
        modules.append("efa_nv_peermem")
    return tuple(modules) if modules else Refused("this node has no NVIDIA GPU and no mlx5 NIC")


def modules_load(request: ManifestRequest) -> str | Refused:
    """Return a file for /etc/modules-load.d."""
    modules = boot_modules(request)
    if isinstance(modules, Refused):
        return modules
    notes = []
    if request.path is GdrPath.DMABUF:
        notes.append("DMA-BUF needs no module of its own; udev loads most of these, but not nvidia_uvm")
    elif request.path is GdrPath.PEERMEM:
        notes.append("no device triggers nvidia_peermem, so udev never loads it")
    elif request.path is GdrPath.CXI:  # shs-cxi-driver, 50-cxi-driver.rules
        notes.append("udev loads cxi_ss1, and a rule in its package then loads cxi_user and cxi_eth")
    if _needs_drop_in(request):
        notes.append(
            "each restart of openibd unloads nvidia_peermem, and at boot OFED may load after this file: "
            "install the drop-in as well (gdrtop manifest modules-load --drop-in)"
        )
    if absent := _not_on_disk(request, modules):
        notes.append(
            f"systemd-modules-load fails if a module is missing; not on disk here: {', '.join(absent)}"
        )
    options = peermem_options(request.situation.examination) if PEERMEM in modules else ()
    if options:
        notes.append(
            f"this OFED also needs the line 'options nvidia_peermem {' '.join(options)}' in a file in "
            "/etc/modprobe.d"
        )
    use = [
        f"install -m 0644 FILE {OWN_FILE}",
        "systemctl restart systemd-modules-load && systemctl status systemd-modules-load",
    ]
    lines = head(request, "modules-load.d(5): modules for GPUDirect RDMA", use, notes)
    return "\n".join([*lines, *modules]) + "\n"


def _not_on_disk(request: ManifestRequest, modules: tuple[str, ...]) -> list[str]:
    """Return the modules that are neither on disk for this node's kernel nor built in."""
    facts = request.situation.examination.node.modules
    if isinstance(facts, Unknown):
        return []
    absent = []
    for name in modules:
        module = facts.modules.get(name)
        if module is None or module.state is ModuleState.BUILTIN:
            continue
        if isinstance(module.on_disk, Unknown) and module.on_disk.reason is Reason.NOT_THERE:
            absent.append(name)
    return absent


def openibd_drop_in(request: ManifestRequest) -> str | Refused:
    """Return a drop-in for openibd.service that loads nvidia_peermem again after each start.

    As on Azure's images (azhpc-images, components/setup_sku_customizations.sh).
    """
    modules = boot_modules(request)
    if isinstance(modules, Refused):
        return modules
    if request.path is not GdrPath.PEERMEM:
        return Refused(f"{request.path.value} does not use nvidia_peermem, so openibd needs no drop-in")
    if not _needs_drop_in(request):
        return Refused("openibd.service is not installed on this node: the file in modules-load.d is enough")
    use = [f"install -D -m 0644 FILE {OPENIBD_FILE}", "systemctl daemon-reload"]
    lines = [
        *head(request, "systemd drop-in for openibd.service: load nvidia_peermem after OFED", use),
        *drop_in_lines(peermem_options(request.situation.examination)),
    ]
    return "\n".join(lines) + "\n"


def drop_in_lines(options: Sequence[str]) -> list[str]:
    """Return the settings of the drop-in; `options`: module parameters, "peerdirect_support=1".

    No Restart=: openibd.service is oneshot, and systemd before 245 refuses to load such a unit.
    """
    return [
        "[Service]",
        *comment_lines("The minus sign: openibd must not fail if nvidia_peermem cannot be loaded."),
        "ExecStartPost=-/bin/sh -c 'modinfo nvidia_peermem >/dev/null 2>&1 && "
        f"{' '.join(('modprobe nvidia_peermem', *options))}'",
    ]


def _needs_drop_in(request: ManifestRequest) -> bool:
    """Return whether openibd is installed on the host and the path uses nvidia_peermem."""
    if request.path is not GdrPath.PEERMEM or nic_stack(request.situation) is NicStack.CONTAINER:
        return False
    services = request.situation.examination.services
    return not isinstance(services, Unknown) and not isinstance(services.services["openibd"].path, Unknown)
