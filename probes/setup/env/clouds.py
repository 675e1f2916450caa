"""What the clouds set themselves: their settings come first, and nothing is stacked on EFA or gIB.

Sources: Azure/azhpc-images components/customizations/ndv4.sh, ndv5.sh; aws/aws-ofi-nccl src/platform-aws.cpp
and doc/efa-env-var.md; GoogleCloudPlatform/container-engine-accelerators gpudirect-rdma/;
oracle-quickstart/oci-hpc playbooks/roles/nccl-conf, samples/gpu; oracle-quickstart/oci-hpc-oke
manifests/nccl-tests; HewlettPackard/shs-ccl-docs ccl_env.sh.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpu.generations import is_model
from probes.facts.gpudirect import hardware_of
from probes.facts.system.platform import Cloud, Provider
from probes.queries.modules import plugin_only_driver
from probes.setup.env.advice import Note, Setting, note_of, setting_of
from probes.snapshot.examination import Examination

GIB_SCRIPT = "/usr/local/gib/scripts/set_nccl_env.sh"
HPE_SCRIPT = "ccl_env.sh"  # of HewlettPackard/shs-ccl-docs
_AZURE_MODELS = ("A100", "H100", "H200")


@frozen
class _OracleGpus:
    """What Oracle sets on its machines with these GPUs."""

    models: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    who: str = "Oracle's images set it"
    source: str = "oracle-quickstart/oci-hpc, /etc/nccl.conf"
    ignores_affinity: bool = True


_TC, _TIMEOUT, _QPS = ("NCCL_IB_TC", "41"), ("NCCL_IB_TIMEOUT", "22"), ("NCCL_IB_QPS_PER_CONNECTION", "4")
_TESTS = ("Oracle's NCCL tests set it", "oracle-quickstart/oci-hpc-oke, manifests/nccl-tests")
# No row for GB200: of its machine types, GB200.4 has none of these, and GB200-v2.4 and -v3.4 have them.
_ORACLE = (
    _OracleGpus(("A100",), (_TC, _QPS)),
    _OracleGpus(("H100", "H200", "B200", "B300"), (_TC, _TIMEOUT)),
    _OracleGpus(("RTX PRO 6000",), (_TC, _TIMEOUT), *_TESTS),
    _OracleGpus(("GB300",), (_TC, _TIMEOUT, _QPS), *_TESTS, ignores_affinity=False),
)
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
        return [note_of("efa-sets"), note_of("efa-ignores"), note_of("efa-found")]
    if stack is Stack.SLINGSHOT:
        sets = note_of("slingshot-sets", script=HPE_SCRIPT)
        return [sets, note_of("slingshot-sets-libfabric"), note_of("slingshot-ignores")]
    return [note_of("gib-sets", script=GIB_SCRIPT)]


def cloud_settings(examination: Examination, cloud: Cloud) -> Iterator[Setting]:
    """Yield the settings of the cloud's own images, as far as they are not NCCL's defaults."""
    gpus = examination.node.gpus
    names = () if isinstance(gpus, Unknown) else tuple(gpu.name for gpu in gpus.gpus)
    if cloud.provider is Provider.AZURE and any(is_model(name, *_AZURE_MODELS) for name in names):
        yield setting_of("azure-ordering", "1")
        yield setting_of("azure-affinity", "1")
    ports = (port for device in examination.topology.devices.values() for port in device.ports)
    has_roce = any(port.link_layer == "Ethernet" for port in ports)
    if cloud.provider is Provider.ORACLE and has_roce:
        rows = (row for row in _ORACLE for name in names if is_model(name, *row.models))
        for row in itertools.islice(rows, 1):
            for variable, value in row.settings:
                yield Setting(variable, value, f"{row.who} for their RoCE network", row.source)
            if row.ignores_affinity:
                affinity = f"{row.who}: NCCL places its threads by GPU"
                yield Setting("NCCL_IGNORE_CPU_AFFINITY", "1", affinity, row.source)
