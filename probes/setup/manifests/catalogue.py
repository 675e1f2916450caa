"""Every manifest by the name that the command line has for it."""

from __future__ import annotations

from collections.abc import Callable

from probes.setup.manifests.container import container
from probes.setup.manifests.daemonset import daemonset
from probes.setup.manifests.device_pairs import dra
from probes.setup.manifests.gpu_operator import cluster_policy, helm
from probes.setup.manifests.gres import gres
from probes.setup.manifests.immutable_hosts import machine_config, talos
from probes.setup.manifests.modules_load import modules_load
from probes.setup.manifests.nic_cluster_policy import nic_cluster_policy
from probes.setup.manifests.node_labels import node_labels
from probes.setup.manifests.node_problem_detector import npd
from probes.setup.manifests.request import ManifestRequest, Refused
from probes.setup.manifests.slurm_prolog import slurm_prolog

WRITERS: dict[str, Callable[[ManifestRequest], str | Refused]] = {
    "clusterpolicy": cluster_policy,
    "helm": helm,
    "nicclusterpolicy": nic_cluster_policy,
    "machineconfig": machine_config,
    "talos": talos,
    "modules-load": modules_load,
    "slurm-prolog": slurm_prolog,
    "nfd": node_labels,
    "npd": npd,
    "daemonset": daemonset,
    "dra": dra,
    "gres": gres,
    "container": container,
}
