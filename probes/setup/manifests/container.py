"""A Dockerfile snippet: the verbs libraries in an image, and the options with which a container runs.

Package names: Debian and Ubuntu (apt), RHEL, Rocky and Alma (dnf), both from rdma-core.
"""

from __future__ import annotations

from probes.base.unknown import Unknown, known
from probes.facts.gpudirect import hardware_of
from probes.facts.system.device_nodes import DeviceNode
from probes.queries.modules import has_efa_only, plugin_only_driver
from probes.setup.manifests.manifest_text import command_line, comment_lines, head
from probes.setup.manifests.request import ManifestRequest, Refused

_PACKAGES = """\
RUN set -eu; \\
    if command -v apt-get >/dev/null 2>&1; then \\
        apt-get update; \\
        apt-get install --yes --no-install-recommends \\
            ibverbs-providers libibverbs1 librdmacm1 ibverbs-utils; \\
        rm -rf /var/lib/apt/lists/*; \\
    else \\
        dnf install --assumeyes libibverbs librdmacm libibverbs-utils; \\
        dnf clean all; \\
    fi
"""


def container(request: ManifestRequest) -> str | Refused:
    """Return a snippet to put after FROM; kernel modules and drivers stay outside of images."""
    examination = request.situation.examination
    notes = ["the image needs user-space libraries only; the host's drivers and modules are used"]
    slingshot = _slingshot_devices(request)
    if has_efa_only(examination):
        notes.append("EFA also needs libfabric and aws-ofi-nccl in the image: use AWS's EFA installer there")
    if slingshot:
        notes.append(
            "Slingshot has no verbs: the image needs libfabric with its cxi provider, libcxi and aws-ofi-nccl"
        )
    lines = head(request, "Dockerfile snippet for GPUDirect RDMA: put it after FROM", (), notes)
    lines += comment_lines("Run the container with:")
    lines += [command_line(text) for text in _run_flags(request)]
    lines += comment_lines(
        "--network host: NCCL and RoCE GIDs need the host's interfaces. memlock and IPC_LOCK: "
        "registered memory is locked, and the usual limit makes ibv_reg_mr fail (Cannot allocate memory). "
        f"--shm-size: NCCL's shared memory. /dev/{'cxi*' if slingshot else 'infiniband'}: the NICs' device "
        "files."
    )
    lines += comment_lines(
        "In Kubernetes: securityContext.capabilities.add: [IPC_LOCK] and a resource rdma/NAME."
    )
    lines += comment_lines("NCCL's variables for this node: gdrtop env")
    return "\n".join(lines) + "\n" + ("" if slingshot else _PACKAGES)


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
