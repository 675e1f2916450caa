"""Every manifest by the name of its command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from probes.setup.manifests.container import container
from probes.setup.manifests.gpu_operator import cluster_policy, helm
from probes.setup.manifests.machine_config import machine_config
from probes.setup.manifests.modules_load import modules_load
from probes.setup.manifests.nic_cluster_policy import nic_cluster_policy
from probes.setup.manifests.request import ManifestRequest, Refused
from probes.setup.manifests.slurm_prolog import slurm_prolog
from probes.setup.manifests.talos import talos


@dataclass(frozen=True)
class ManifestKind:
    """One kind of manifest."""

    name: str
    title: str  # one line for the list
    write: Callable[[ManifestRequest], str | Refused]


KINDS = {
    kind.name: kind
    for kind in (
        ManifestKind("clusterpolicy", "GPU Operator: merge patch of the ClusterPolicy", cluster_policy),
        ManifestKind("helm", "GPU Operator: values of its Helm chart", helm),
        ManifestKind("nicclusterpolicy", "Network Operator: NicClusterPolicy", nic_cluster_policy),
        ManifestKind("machineconfig", "OpenShift: MachineConfig, with its pool if needed", machine_config),
        ManifestKind("talos", "Talos: patch of the machine configuration", talos),
        ManifestKind("modules-load", "systemd: modules to load at boot, modules-load.d(5)", modules_load),
        ManifestKind("slurm-prolog", "Slurm: Prolog that checks the node before each job", slurm_prolog),
        ManifestKind("container", "containers: Dockerfile snippet and run options", container),
    )
}
