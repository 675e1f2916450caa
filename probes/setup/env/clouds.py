"""What the clouds set themselves: their settings come first, and nothing is stacked on EFA or gIB.

Sources: Azure/azhpc-images components/customizations/ndv4.sh, ndv5.sh; aws/aws-ofi-nccl src/platform-aws.cpp
and doc/efa-env-var.md; GoogleCloudPlatform/container-engine-accelerators gpudirect-rdma/;
oracle-quickstart/oci-hpc playbooks/roles/nccl-conf/templates, samples/gpu; HewlettPackard/shs-ccl-docs
ccl_env.sh.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpudirect import hardware_of
from probes.facts.system.platform import Cloud, Provider
from probes.queries.modules import plugin_only_driver
from probes.setup.env.advice import Note, Setting, State
from probes.snapshot.examination import Examination

GIB_SCRIPT = "/usr/local/gib/scripts/set_nccl_env.sh"
HPE_SCRIPT = "ccl_env.sh"  # of HewlettPackard/shs-ccl-docs
_AZURE_FILE = "Azure/azhpc-images, /etc/nccl.conf of ND A100 v4, H100 v5 and H200 v5"
_ORACLE_FILE = "oracle-quickstart/oci-hpc, /etc/nccl.conf"
# On EFA the plugin is the network: NCCL's own InfiniBand code does not run.
PLUGIN_SETS = (
    *("NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NET_FORCE_FLUSH"),
    *("NCCL_NETDEVS_POLICY", "NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE"),
)
ON_EFA = {
    "FI_PROVIDER": "efa-chosen-anyway",
    "FI_EFA_USE_DEVICE_RDMA": "efa-uses-device-rdma",
    "FI_EFA_FORK_SAFE": "efa-fork-safe",
    "RDMAV_FORK_SAFE": "efa-fork-safe-breaks",
    "NCCL_MIN_NCHANNELS": "efa-channels",
    **dict.fromkeys(("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), "efa-has-no-sockets"),
}
"""Ids of problems.toml."""
# Google's own scripts set these after they source set_nccl_env.sh (cluster-toolkit, run-nccl-tests.sh).
WITH_GIB = ("NCCL_NET", "NCCL_SOCKET_IFNAME")


class Stack(Enum):
    """Software of a cloud that sets NCCL's variables itself; the value is the name shown."""

    EFA = "AWS with EFA"
    GIB = "Google Cloud with gIB"
    SLINGSHOT = "HPE Slingshot"


def stack_of(examination: Examination, cloud: Maybe[Cloud]) -> Stack | None:
    """Return the network stack that replaces NCCL's own, by the NICs' driver and the cloud."""
    drivers = {known(device.driver, "") for device in hardware_of(examination.node.rdma)}
    if "efa" in drivers:
        return Stack.EFA
    if plugin_only_driver(examination):
        return Stack.SLINGSHOT
    is_google = not isinstance(cloud, Unknown) and cloud.provider is Provider.GOOGLE
    return Stack.GIB if is_google and any(driver.startswith("mlx5") for driver in drivers) else None


def stack_notes(stack: Stack) -> list[Note]:
    """Say who sets the variables instead."""
    if stack is Stack.EFA:
        why = "libfabric finds EFA itself; AWS advises against setting this"
        return [
            Note("NCCL_*", State.VENDOR, "the aws-ofi-nccl plugin sets what each instance type needs"),
            Note("NCCL_IB_*", State.NOT_NEEDED, "these have no effect on EFA"),
            Note("FI_PROVIDER", State.NOT_NEEDED, why),
        ]
    if stack is Stack.SLINGSHOT:
        text = f"the site's NCCL module sets NCCL_NET and others, as HPE's {HPE_SCRIPT} does"
        return [
            Note("NCCL_*", State.VENDOR, text),
            Note("FI_*", State.VENDOR, "the same module, for libfabric's cxi provider"),
            Note("NCCL_IB_*", State.NOT_NEEDED, "these have no effect on Slingshot"),
        ]
    text = f"{GIB_SCRIPT} in the container sets them, with values for this machine type"
    return [Note("NCCL_*", State.VENDOR, text)]


def cloud_settings(examination: Examination, cloud: Cloud) -> Iterator[Setting]:
    """Yield the settings of the cloud's own images, as far as they are not NCCL's defaults."""
    if cloud.provider is Provider.AZURE and _has_gpu(examination, "A100", "H100", "H200"):
        affinity = "Microsoft's images set it, because a virtual machine's CPU affinity is not the host's"
        ordering = "Microsoft's images set it; virtual machines need relaxed ordering for full bandwidth"
        yield Setting("NCCL_IB_PCI_RELAXED_ORDERING", "1", ordering, _AZURE_FILE)
        yield Setting("NCCL_IGNORE_CPU_AFFINITY", "1", affinity, _AZURE_FILE)
    has_template = _has_gpu(examination, "A100", "H100", "B200", "B300")
    ports = (port for device in examination.topology.devices.values() for port in device.ports)
    has_roce = any(port.link_layer == "Ethernet" for port in ports)
    if cloud.provider is Provider.ORACLE and has_template and has_roce:
        why = "Oracle's images set it for their RoCE network"
        yield Setting("NCCL_IB_TC", "41", why, _ORACLE_FILE)
        if not _has_gpu(examination, "A100"):
            yield Setting("NCCL_IB_TIMEOUT", "22", why, _ORACLE_FILE)
        else:
            yield Setting("NCCL_IB_QPS_PER_CONNECTION", "4", f"{why}, on A100", _ORACLE_FILE)
        affinity = "Oracle's images set it: NCCL places its threads by GPU"
        yield Setting("NCCL_IGNORE_CPU_AFFINITY", "1", affinity, _ORACLE_FILE)


def _has_gpu(examination: Examination, *models: str) -> bool:
    gpus = examination.node.gpus
    return not isinstance(gpus, Unknown) and any(
        model in known(gpu.name, "") for gpu in gpus.gpus for model in models
    )
