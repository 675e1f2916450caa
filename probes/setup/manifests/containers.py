"""Kubernetes' Dynamic Resource Allocation (DRA): a GPU and a NIC below the same PCIe root, for a pod.

Attributes: kubernetes.io, DRA standard device attributes; NVIDIA/k8s-dra-driver-gpu @ 2240711,
cmd/gpu-kubelet-plugin/deviceinfo.go; google/dranet @ 7b7661a, pkg/inventory/db.go and
examples/demo_nvidia_dranet. resource.k8s.io/v1 exists since Kubernetes 1.34.
"""

from __future__ import annotations

from probes.base.data_files import read_text
from probes.base.frozen import frozen
from probes.base.text import SHOWN, join_limited, plural
from probes.base.unknown import Unknown, known
from probes.facts.gpudirect import hardware_of
from probes.facts.rdma.devices import natural
from probes.facts.system.device_nodes import DeviceNode
from probes.queries.modules import has_efa_only, plugin_only_driver
from probes.queries.pcie_paths import functions_of
from probes.setup.manifests.manifest_text import (
    ManifestRequest,
    Refused,
    command_line,
    comment,
    comment_lines,
    head,
    join,
    note,
    refused,
)
from probes.snapshot.examination import Examination
from probes.topology.paths import Topology


@frozen
class SharedRoot:
    """A GPU, and the NICs that the constraint may select for it."""

    gpu: str  # "GPU0"
    root: str  # "pci0000:15"
    nics: tuple[str, ...]  # with an RDMA device, below the same root
    nearest: tuple[str, ...]  # the best NICs, all equally near; () if all NICs are alike


def dra(request: ManifestRequest) -> str | Refused:
    """Return a DeviceClass and a ResourceClaimTemplate; refused where no NIC shares a root with a GPU."""
    examination = request.situation.examination
    if plugin_only_driver(examination).startswith("cxi"):
        return refused("slingshot-has-no-rdma")
    pairs = shared_roots(examination)
    if not pairs:
        return refused("places-unknown")
    if not any(pair.nics for pair in pairs):
        return refused("no-shared-root")
    lines = [*head(request, "dra", _warnings(pairs)), *comment("pcie-roots")]
    lines += [command_line(row) for row in _table(pairs)]
    return join(lines, read_text(__package__, "dra.yaml"))


def shared_roots(examination: Examination) -> list[SharedRoot]:
    """Return which NICs share each GPU's PCIe root; [] if the places of GPUs are unknown.

    A NIC counts where DRANET sees it: at its own function, not at its Data Direct function.
    """
    topology, functions = examination.topology, functions_of(examination)
    roots = {name: place.root for name, place in functions.items()}
    names = sorted(topology.devices, key=natural)
    bdfs = {name: known(topology.devices[name].bdf, "") for name in names}
    pairs = []
    for gpu in topology.gpus:
        root = roots.get(gpu.id, "")
        if root:
            below = tuple(name for name in names if roots.get(bdfs[name]) == root)
            pairs.append(SharedRoot(gpu.label, root, below, _nearest(topology, gpu.id)))
    return pairs


def _nearest(topology: Topology, gpu: str) -> tuple[str, ...]:
    """Return the NICs with NCCL's nearest word; else the best one, if one is nearer than the others."""
    words = topology.near_nics.get(gpu, {})
    if not words:
        return (topology.best_nic[gpu],) if gpu in topology.best_nic else ()
    best = next(iter(words.values()))
    return tuple(name for name, word in words.items() if word is best)


def _warnings(pairs: list[SharedRoot]) -> list[str]:
    """Return where the constraint selects no NIC, none of the nearest, or perhaps another one."""
    alone = [pair.gpu for pair in pairs if not pair.nics]
    with_nics = [pair for pair in pairs if pair.nics and pair.nearest]
    wrong = [pair for pair in with_nics if not set(pair.nics) & set(pair.nearest)]
    loose = [pair for pair in with_nics if pair not in wrong and set(pair.nics) - set(pair.nearest)]
    warnings = [note("no-shared-nic", gpus=join_limited(alone))] if alone else []
    warnings += [
        note("nearest-elsewhere", gpu=pair.gpu, nics=join_limited(pair.nearest)) for pair in wrong[:SHOWN]
    ]
    if loose:
        pair = loose[0]
        farther = len(set(pair.nics) - set(pair.nearest))
        words = {
            "gpus": join_limited(each.gpu for each in loose),
            "nics": plural(len(pair.nics), "NIC"),
            "gpu": pair.gpu,
            "farther": f"{farther} {'is' if farther == 1 else 'are'}",
            "nearest": join_limited(pair.nearest),
        }
        warnings.append(note("too-loose", **words))
    return warnings


def _table(pairs: list[SharedRoot]) -> list[str]:
    """Return a row for each PCIe root: its GPUs and its NICs."""
    gpus: dict[str, list[str]] = {}
    for pair in pairs:
        gpus.setdefault(pair.root, []).append(pair.gpu)
    nics = {pair.root: pair.nics for pair in pairs}
    return [
        f"{root}  {join_limited(names)}: {plural(len(nics[root]), 'NIC')} {join_limited(nics[root])}".rstrip()
        for root, names in gpus.items()
    ]


# A Dockerfile snippet: the verbs libraries in an image, and the options with which a container runs.
#
# Package names: Debian and Ubuntu (apt), RHEL, Rocky and Alma (dnf), both from rdma-core.


def container(request: ManifestRequest) -> str | Refused:
    """Return a snippet to put after FROM; kernel modules and drivers stay outside of images."""
    examination = request.situation.examination
    notes = []
    slingshot = _slingshot_devices(request)
    if has_efa_only(examination):
        notes.append(note("efa-libraries"))
    if slingshot:
        notes.append(note("slingshot-libraries"))
    lines = head(request, "container", notes)
    lines += comment_lines("Run the container with:")
    lines += [command_line(text) for text in _run_flags(request)]
    lines += comment("run-options", files="cxi*" if slingshot else "infiniband")
    lines += comment("run-in-kubernetes")
    lines += comment_lines("NCCL's variables for this node: gdrtop env")
    return "\n".join(lines) + "\n" + ("" if slingshot else read_text(__package__, "verbs.dockerfile"))


def _slingshot_devices(request: ManifestRequest) -> list[str]:
    """Return the device files of Slingshot NICs, if there are no other NICs."""
    examination = request.situation.examination
    if not plugin_only_driver(examination).startswith("cxi"):
        return []
    return [f"/dev/{device.name}" for device in hardware_of(examination.node.rdma)]


def _run_flags(request: ManifestRequest) -> list[str]:
    devices = request.situation.examination.device_nodes
    gpu: tuple[DeviceNode, ...] = () if isinstance(devices, Unknown) else known(devices.gpu, ())
    copy = " --device /dev/gdrdrv" if any(node.path == "/dev/gdrdrv" for node in gpu) else ""
    nics = "".join(f" --device {path}" for path in _slingshot_devices(request) or ["/dev/infiniband"])
    shared = f"--network host --shm-size 1g --ulimit memlock=-1:-1 --cap-add IPC_LOCK{nics}{copy}"
    return [f"docker run --gpus all {shared} IMAGE", f"podman run --device nvidia.com/gpu=all {shared} IMAGE"]
