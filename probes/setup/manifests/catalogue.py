"""Every manifest that is derived from a node."""

from __future__ import annotations

from collections.abc import Callable

from probes.base.frozen import frozen
from probes.setup.manifests.gpu_operator import cluster_policy, helm, nic_cluster_policy
from probes.setup.manifests.immutable_hosts import machine_config, modules_load, talos
from probes.setup.manifests.manifest_text import ManifestRequest, Refused
from probes.setup.manifests.slurm import slurm_prolog


@frozen
class Manifest:
    """What other nodes like this one need."""

    text: str  # what it is for, in one line
    write: Callable[[ManifestRequest], str | Refused]


MANIFESTS = {
    "clusterpolicy": Manifest("GPU Operator: merge patch of the ClusterPolicy", cluster_policy),
    "helm": Manifest("GPU Operator: values of its Helm chart", helm),
    "nicclusterpolicy": Manifest("Network Operator: NicClusterPolicy", nic_cluster_policy),
    "machineconfig": Manifest("OpenShift: MachineConfig, with its pool if needed (--role)", machine_config),
    "talos": Manifest("Talos: patch of the machine configuration (--talos-version)", talos),
    "modules-load": Manifest("systemd: modules to load at boot (--drop-in: for openibd)", modules_load),
    "slurm-prolog": Manifest(
        "Slurm: Prolog that checks a job's GPUs and NICs; for peermem, it loads the module", slurm_prolog
    ),
}
"""By the name that the command line has for it."""
