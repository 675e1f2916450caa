"""Clients in the kernel that share NICs with jobs: Lustre, NFS over RDMA, NVMe over Fabrics.

They have no process. Those that use rdma_cm (core/cma.c, rdma_create_qp) own queue pairs in its name, so
their own names are those of the protection domains on the device (rdma-resource(8)).
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.text import printable
from probes.host.rdma_resources import RdmaResources

# Names of modules (KBUILD_MODNAME) -> what users call them.
_NAMES = {
    "beegfs": "BeeGFS",
    "cifs": "SMB",
    "ib_iser": "iSER",
    "ib_isert": "iSER target",
    "ib_srp": "SRP",
    "ib_srpt": "SRP target",
    "ko2iblnd": "Lustre",
    "ksmbd": "SMB server",
    "nvme_rdma": "NVMe-oF",
    "nvmet_rdma": "NVMe-oF target",
    "rpcrdma": "NFS",
    "smbdirect": "SMB",
}
_CM = "rdma_cm"
# srp_add_one, srpt_add_one: a domain on each device, even without targets.
_AT_LOAD = {"ib_srp", "ib_srpt"}
_MOST_NAMED = 3


def kernel_clients(resources: RdmaResources) -> Mapping[str, tuple[str, ...]]:
    """Return the kernel's clients with connected queue pairs, by device: {"mlx5_0": ("Lustre",)}."""
    owners: dict[str, set[str]] = {}
    for pair in resources.queue_pairs:
        if pair.kernel_name and (pair.kind, pair.state) == ("RC", "RTS"):
            owners.setdefault(pair.device, set()).add(pair.kernel_name)
    if not owners:
        return {}
    domains: dict[str, set[str]] = {}
    for domain in resources.domains:
        domains.setdefault(domain.device, set()).add(domain.kernel_name)
    return {device: _named(names, domains.get(device, set())) for device, names in sorted(owners.items())}


def _named(owners: set[str], domains: set[str]) -> tuple[str, ...]:
    names = {name.replace("-", "_") for name in domains} & _NAMES.keys() if _CM in owners else set()
    names = names - _AT_LOAD or names
    known = sorted({_NAMES[name] for name in names | owners & _NAMES.keys()})
    others = owners - _NAMES.keys() - ({_CM} if names else set())
    return (*known, *sorted(f"kernel ({printable(name, 40)})" for name in others))[:_MOST_NAMED]
