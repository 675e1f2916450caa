"""Hosts whose files cannot be edited: an OpenShift MachineConfig, and Talos's machine configuration.

OpenShift: modules and the kernel option of the nodes of one pool. Formats: openshift/machine-config-operator,
docs/MachineConfig.md and docs/custom-pools.md; Ignition 3.2.0, which OpenShift 4.7 and newer accept. Each
change reboots the nodes of the pool, one after the other.

Talos: the modules and the sysctl, in the form of either version. siderolabs/talos: until 1.13
machine.kernel.modules and machine.sysctls; from 1.14 on the documents KernelModuleConfig and SysctlConfig,
whose schema rejects machine.kernel. Modules and sysctl: Talos's guide for NVIDIA GPUs (open source modules);
siderolabs/extensions, nvidia-gpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from probes.base.unknown import Reason, Unknown, known
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.modules import PEERMEM, ModuleState
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.rdma.nic_driver import NicStack
from probes.facts.system.platform import is_guest
from probes.plans.load_modules import OWN_FILE, path_modules, peermem_options
from probes.plans.pcie import pass_through_option
from probes.queries.modules import nics_of
from probes.queries.pcie_paths import is_arm64
from probes.setup.manifests.manifest_text import (
    Commented,
    DriverOwner,
    ManifestRequest,
    Refused,
    comment,
    commented,
    dump,
    has_nvlink5,
    head,
    join,
    nic_stack,
    note,
    refused,
)

# Which modules nodes like this one load at boot: a file for modules-load.d(5), and a drop-in for openibd.

OPENIBD_FILE = "/etc/systemd/system/openibd.service.d/10-nvidia-peermem.conf"


def boot_modules(request: ManifestRequest) -> tuple[str, ...] | Refused:
    """Return the modules in load order, or why the host must not load any.

    A module that exists only in the driver's container makes systemd-modules-load fail at boot.
    """
    if request.driver is DriverOwner.OPERATOR:
        return refused("operator-has-modules")
    names = path_modules(request.situation.examination)
    if isinstance(names, Unknown):
        return refused("devices-unknown", why=names)
    modules = [name for name in names if name != PEERMEM]
    if has_nvlink5(request.situation):
        modules.append("ib_umad")
    if request.path is GdrPath.PEERMEM:
        modules.append(PEERMEM)
    elif request.path is GdrPath.EFA:
        modules.append("efa_nv_peermem")
    return tuple(modules) if modules else refused("no-devices")


def modules_load(request: ManifestRequest) -> str | Refused:
    """Return a file for /etc/modules-load.d."""
    modules = boot_modules(request)
    if isinstance(modules, Refused):
        return modules
    notes = []
    if request.path is GdrPath.DMABUF:
        notes.append(note("dmabuf-modules"))
    elif request.path is GdrPath.PEERMEM:
        notes.append(note("peermem-modules"))
    elif request.path is GdrPath.CXI:  # shs-cxi-driver, 50-cxi-driver.rules
        notes.append(note("slingshot-modules"))
    if _needs_drop_in(request):
        notes.append(note("needs-drop-in"))
    if absent := _not_on_disk(request, modules):
        notes.append(note("modules-absent", modules=", ".join(absent)))
    options = peermem_options(request.situation.examination) if PEERMEM in modules else ()
    if options:
        notes.append(note("needs-options", options=" ".join(options)))
    lines = head(request, "modules-load", notes, file=OWN_FILE)
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
        return refused("no-drop-in", path=request.path.value)
    if not _needs_drop_in(request):
        return refused("no-openibd")
    lines = [
        *head(request, "drop-in", file=OPENIBD_FILE),
        *drop_in_lines(peermem_options(request.situation.examination)),
    ]
    return "\n".join(lines) + "\n"


def drop_in_lines(options: Sequence[str]) -> list[str]:
    """Return the settings of the drop-in; `options`: module parameters, "peerdirect_support=1".

    No Restart=: openibd.service is oneshot, and systemd before 245 refuses to load such a unit.
    """
    return [
        "[Service]",
        *comment("openibd"),
        "ExecStartPost=-/bin/sh -c 'modinfo nvidia_peermem >/dev/null 2>&1 && "
        f"{' '.join(('modprobe nvidia_peermem', *options))}'",
    ]


def _needs_drop_in(request: ManifestRequest) -> bool:
    """Return whether openibd is installed on the host and the path uses nvidia_peermem."""
    if request.path is not GdrPath.PEERMEM or nic_stack(request.situation) is NicStack.CONTAINER:
        return False
    services = request.situation.examination.services
    return not isinstance(services, Unknown) and not isinstance(services.services["openibd"].path, Unknown)


IGNITION_VERSION = "3.2.0"
_ROLE = "machineconfiguration.openshift.io/role"
_STANDARD_ROLES = ("worker", "master")
_FILE_MODE = 0o644  # printed as 420: Ignition takes a decimal integer
_FIRST_DOCUMENTS = (1, 14)
_SYSCTL = {"net.core.bpf_jit_harden": "1"}
_WHY_SYSCTL = "From Talos's guide for NVIDIA GPUs."
_WHY = {
    "nvidia": "The GPU driver. The extension keeps udev from loading it, so every module is listed.",
    "mlx5_core": "The NICs: Talos uses the kernel's own driver, which is enough for DMA-BUF.",
    "ib_uverbs": "Programs register memory with NICs through it.",
    "ib_umad": "NVLink 5: the switch manager sends its packets through it.",
}


def machine_config(request: ManifestRequest) -> str | Refused:
    """Return the MachineConfig, with its pool if the role is not one of OpenShift's own."""
    modules = boot_modules(request)
    arguments = _kernel_arguments(request)
    if isinstance(modules, Refused) and not arguments:
        return modules
    role = request.role
    config: dict[str, Any] = {"ignition": {"version": IGNITION_VERSION}}
    if not isinstance(modules, Refused):
        listed = ", ".join(modules)
        config["storage"] = {"files": [commented(_file(modules), "machine-modules", modules=listed)]}
    spec: dict[str, Any] = {"config": config}
    if arguments:
        spec["kernelArguments"] = commented(arguments, "machine-iommu")
    labels = commented({_ROLE: role}, "machine-role" if role in _STANDARD_ROLES else "machine-own-role")
    machine = {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": f"99-{role}-gdrtop-gpudirect-rdma", "labels": labels},
        "spec": spec,
    }
    notes = []
    if isinstance(modules, Refused):
        notes.append(note("no-machine-modules", why=modules.reason))
    use = [f"oc apply --filename FILE && oc get machineconfigpool {role} --watch"]
    if role not in _STANDARD_ROLES:
        use.insert(0, f"oc label node NODE node-role.kubernetes.io/{role}=")
    lines = head(request, "machineconfig", notes, use, role=role)
    pool = () if role in _STANDARD_ROLES else (_pool(role),)
    return join(lines, *pool, dump(machine))


def _file(modules: tuple[str, ...]) -> dict[str, Any]:
    text = "".join(f"{name}\n" for name in modules)
    mode = commented(_FILE_MODE, "file-mode")
    contents = commented({"source": f"data:,{quote(text)}"}, "file-contents")
    return {"path": OWN_FILE, "mode": mode, "overwrite": True, "contents": contents}


def _pool(role: str) -> str:
    """Return a pool that takes the workers' configuration and this role's."""
    pool = {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": {"name": commented(role, "pool")},
        "spec": {
            "machineConfigSelector": {
                "matchExpressions": [{"key": _ROLE, "operator": "In", "values": ["worker", role]}]
            },
            "nodeSelector": {"matchLabels": {f"node-role.kubernetes.io/{role}": ""}},
        },
    }
    return dump(pool)


def _kernel_arguments(request: ManifestRequest) -> list[str]:
    """Return the option for a passthrough IOMMU where the groups of GPUs or NICs are translated."""
    examination = request.situation.examination
    pci = examination.node.pci
    if isinstance(pci, Unknown) or is_arm64(examination) or is_guest(examination.node.platform) is not False:
        return []
    wanted = {gpu.bdf for gpu in examination.topology.gpus} | {nic.bdf for nic in examination.topology.nics}
    types = {known(pci.functions[bdf].iommu_type, "") for bdf in wanted if bdf in pci.functions}
    return [pass_through_option(examination)] if any(kind.startswith("DMA") for kind in types) else []


def talos(request: ManifestRequest) -> str | Refused:
    """Return a patch of the machine configuration; DMA-BUF only."""
    if request.path is not GdrPath.DMABUF:
        return refused("talos-path")
    if request.talos_version is None:
        return refused("talos-version")
    modules = _modules(request)
    newer = request.talos_version >= _FIRST_DOCUMENTS
    words = {
        "version": ".".join(map(str, request.talos_version)),
        "others": "1.13 and older" if newer else "1.14 and newer",
        "extensions": ", ".join(_extensions(request)),
    }
    lines = head(request, "talos", **words)
    return join(lines, *(_documents(modules) if newer else (_machine(modules),)))


def _modules(request: ManifestRequest) -> list[str]:
    modules = ["nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset"]
    if nics_of(request.situation.examination, CONNECTX) != ():
        modules += CONNECTX.modules
    modules.append("ib_uverbs")
    return [*modules, "ib_umad"] if has_nvlink5(request.situation) else modules


def _extensions(request: ManifestRequest) -> list[str]:
    names = ["nvidia-open-gpu-kernel-modules-production", "nvidia-container-toolkit-production"]
    pci = request.situation.examination.node.pci
    functions = pci.functions.values() if isinstance(pci, PciFacts) else ()
    if has_nvlink5(request.situation) or any(f.kind is PciKind.NVSWITCH for f in functions):
        names.append("nvidia-fabricmanager-production")
    return names


def _machine(modules: list[str]) -> str:
    listed = [Commented({"name": name}, _WHY.get(name, "")) for name in modules]
    return dump({"machine": {"kernel": {"modules": listed}, "sysctls": Commented(_SYSCTL, _WHY_SYSCTL)}})


def _documents(modules: list[str]) -> list[str]:
    return [
        *(_document("KernelModuleConfig", _WHY.get(name, ""), name=name) for name in modules),
        _document("SysctlConfig", _WHY_SYSCTL, params=_SYSCTL),
    ]


def _document(kind: str, why: str, **fields: object) -> str:
    return dump({"apiVersion": Commented("v1alpha1", why), "kind": kind, **fields})
