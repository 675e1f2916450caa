"""An OpenShift MachineConfig: modules and the kernel option of the nodes of one pool.

Formats: openshift/machine-config-operator, docs/MachineConfig.md and docs/custom-pools.md; Ignition 3.2.0,
which OpenShift 4.7 and newer accept. Each change reboots the nodes of the pool, one after the other.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from probes.base.unknown import Unknown, known
from probes.facts.system.platform import is_guest
from probes.plans.load_modules import OWN_FILE
from probes.plans.pcie import is_arm64, pass_through_option
from probes.setup.manifests.commented_yaml import Key, dump, join
from probes.setup.manifests.head import head
from probes.setup.manifests.modules_load import boot_modules
from probes.setup.manifests.request import ManifestRequest, Refused

IGNITION_VERSION = "3.2.0"
_ROLE = "machineconfiguration.openshift.io/role"
_STANDARD_ROLES = ("worker", "master")
_FILE_MODE = 0o644  # printed as 420: Ignition takes a decimal integer


def machine_config(request: ManifestRequest) -> str | Refused:
    """Return the MachineConfig, with its pool if the role is not one of OpenShift's own."""
    modules = boot_modules(request)
    arguments = _kernel_arguments(request)
    if isinstance(modules, Refused) and not arguments:
        return modules
    role = request.role
    spec: dict[str, Any] = {}
    comments: dict[Key, str] = {
        ("metadata", "labels"): "The pool whose nodes get this."
        if role in _STANDARD_ROLES
        else "The pool below selects it by this label. Without a pool it is never applied."
    }
    config: dict[str, Any] = {"ignition": {"version": IGNITION_VERSION}}
    if not isinstance(modules, Refused):
        config["storage"] = {"files": [_file(modules)]}
        place: Key = ("spec", "config", "storage", "files", 0)
        comments[place] = f"Modules at boot: {', '.join(modules)}."
        mode, contents = (*place, "mode"), (*place, "contents")
        comments[mode] = "Octal 0644. A string or a leading zero is rejected or misread."
        comments[contents] = "A data URL (RFC 2397). contents.inline is Butane, not Ignition."
    spec["config"] = config
    if arguments:
        spec["kernelArguments"] = arguments
        comments["spec", "kernelArguments"] = (
            "The IOMMU translates the DMA of GPUs and NICs on this node, which costs bandwidth."
        )
    machine = {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": f"99-{role}-gdrtop-gpudirect-rdma", "labels": {_ROLE: role}},
        "spec": spec,
    }
    notes = [f"applying it reboots every node of the pool {role}, one after the other"]
    if isinstance(modules, Refused):
        notes.append(f"no modules are loaded at boot: {modules.reason}")
    use = [f"oc apply --filename FILE && oc get machineconfigpool {role} --watch"]
    if role not in _STANDARD_ROLES:
        use.insert(0, f"oc label node NODE node-role.kubernetes.io/{role}=")
    lines = head(request, f"OpenShift: MachineConfig for the pool {role} for GPUDirect RDMA", use, notes)
    pool = () if role in _STANDARD_ROLES else (_pool(role),)
    return join(lines, *pool, dump(machine, comments))


def _file(modules: tuple[str, ...]) -> dict[str, Any]:
    text = "".join(f"{name}\n" for name in modules)
    return {
        "path": OWN_FILE,
        "mode": _FILE_MODE,
        "overwrite": True,
        "contents": {"source": f"data:,{quote(text)}"},
    }


def _pool(role: str) -> str:
    """Return a pool that takes the workers' configuration and this role's."""
    pool = {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": {"name": role},
        "spec": {
            "machineConfigSelector": {
                "matchExpressions": [{"key": _ROLE, "operator": "In", "values": ["worker", role]}]
            },
            "nodeSelector": {"matchLabels": {f"node-role.kubernetes.io/{role}": ""}},
        },
    }
    return dump(pool, {("metadata", "name"): "Skip this object if the pool exists already."})


def _kernel_arguments(request: ManifestRequest) -> list[str]:
    """Return the option for a passthrough IOMMU where the groups of GPUs or NICs are translated."""
    examination = request.situation.examination
    pci = examination.node.pci
    if isinstance(pci, Unknown) or is_arm64(examination) or is_guest(examination.node.platform) is not False:
        return []
    wanted = {gpu.bdf for gpu in examination.topology.gpus} | {nic.bdf for nic in examination.topology.nics}
    types = {known(pci.functions[bdf].iommu_type, "") for bdf in wanted if bdf in pci.functions}
    return [pass_through_option(examination)] if any(kind.startswith("DMA") for kind in types) else []
