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

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpu.generations import is_model
from probes.facts.gpudirect import hardware_of
from probes.facts.system.platform import Cloud, Provider
from probes.queries.modules import plugin_only_driver
from probes.setup.env.advice import Note, Setting, State
from probes.snapshot.examination import Examination

GIB_SCRIPT = "/usr/local/gib/scripts/set_nccl_env.sh"
HPE_SCRIPT = "ccl_env.sh"  # of HewlettPackard/shs-ccl-docs
_AZURE_FILE = "Azure/azhpc-images, /etc/nccl.conf of ND A100 v4, H100 v5 and H200 v5"
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
_NO_THREADS = (Severity.NOTE, "has no effect on EFA", "It is for TCP sockets.")
ON_EFA: dict[str, tuple[Severity, str, str]] = {
    "FI_PROVIDER": (Severity.NOTE, "is needed only before aws-ofi-nccl 1.6", "Newer plugins choose efa."),
    "FI_EFA_USE_DEVICE_RDMA": (
        Severity.NOTE,
        "is not needed with libfabric 1.18 and aws-ofi-nccl 1.7 or newer",
        "Setting it to 1 does no harm.",
    ),
    "FI_EFA_FORK_SAFE": (Severity.NOTE, "is set by the aws-ofi-nccl plugin", ""),
    "RDMAV_FORK_SAFE": (Severity.WARNING, "can break jobs on newer kernels", "AWS: “Do not use.”"),
    "NCCL_MIN_NCHANNELS": (
        Severity.WARNING,
        "can slow down EFA",
        "More channels than needed make messages too small for EFA. AWS recommends the default.",
    ),
    "NCCL_SOCKET_NTHREADS": _NO_THREADS,
    "NCCL_NSOCKS_PERTHREAD": _NO_THREADS,
}
"""Severity, title after the name, and detail, as in aws/aws-ofi-nccl doc/efa-env-var.md."""
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
    gpus = examination.node.gpus
    names = () if isinstance(gpus, Unknown) else tuple(gpu.name for gpu in gpus.gpus)
    if cloud.provider is Provider.AZURE and any(is_model(name, *_AZURE_MODELS) for name in names):
        affinity = "Microsoft's images set it, because a virtual machine's CPU affinity is not the host's"
        ordering = "Microsoft's images set it; virtual machines need relaxed ordering for full bandwidth"
        yield Setting("NCCL_IB_PCI_RELAXED_ORDERING", "1", ordering, _AZURE_FILE)
        yield Setting("NCCL_IGNORE_CPU_AFFINITY", "1", affinity, _AZURE_FILE)
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
