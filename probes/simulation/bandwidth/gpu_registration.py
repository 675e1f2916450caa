"""What the program that registers GPU memory reports on a simulated node (gdrtop prove).

Each answer follows from the state of the node, by the rules with which perftest gets its memory or not.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence

from probes.bandwidth.registration.outcome import (
    COMPUTE_MODE,
    DMABUF,
    EXPORT,
    GPU_CALLS,
    LIBRARIES,
    NIC_CALLS,
    PEER_MEMORY,
    SUPPORTED,
)
from probes.base.unknown import Unknown, known
from probes.simulation.bandwidth import cuda
from probes.simulation.bandwidth.node_pair import SimulatedNode
from probes.simulation.bandwidth.playback import Line, Script, SimulatedTest
from probes.simulation.bandwidth.registration import dmabuf_error, host_error, peermem_error
from probes.simulation.node.jobs.processes import library_directory
from probes.simulation.node.jobs.programs import needs_plugin
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination

_SECONDS_PER_ANSWER = 0.004
_HOST_BYTES = 4096
_NOT_EXPORTED = 801
_NOT_LISTED = 101


def start(node: SimulatedNode, gpu: str, nics: Sequence[str]) -> SimulatedTest:
    """Start the program for a GPU (BDF) and NICs, given as "ACCESS:NAME"."""
    at = node.clock()
    names = [word.partition(":")[2] for word in nics]
    texts = [json.dumps(answer) for answer in _answers(node.tree, node.examine(), gpu, names)]
    lines = [Line(at + _SECONDS_PER_ANSWER * number, text) for number, text in enumerate(texts, 1)]
    return node.run(Script(lines, lines[-1].at))


def _answers(
    tree: Tree, examination: Examination, gpu: str, nics: Sequence[str]
) -> Iterator[tuple[str, str, int | str]]:
    """Yield (NIC, call, value) of each call that returns."""
    libraries = library_directory(tree)
    for library in LIBRARIES:
        if not tree.is_there(f"{libraries}/{library}.so.1"):
            yield "", library, f"{library}.so.1 is not installed"
            return
    opened = []
    for nic in nics:
        number = _open_error(tree, examination, nic)
        if number == 0:
            opened.append(nic)
        for call in NIC_CALLS:
            is_failing = number != 0 and call == _failing_call(number)
            yield nic, call, number if is_failing else 0
            if is_failing:
                break
    if not opened:
        return
    failed = None
    for answer in _gpu_answers(tree, gpu):
        yield answer
        failed = answer if answer[1] in GPU_CALLS and answer[2] else failed
    if failed is not None:
        return
    is_exported = tree.description.exports_dmabuf
    yield "", EXPORT, 0 if is_exported else _NOT_EXPORTED
    for nic in opened:
        if is_exported:
            yield nic, DMABUF, dmabuf_error(tree, examination, nic) or 0
        yield nic, PEER_MEMORY, _peer_memory_error(tree, examination, nic)


def _open_error(tree: Tree, examination: Examination, nic: str) -> int:
    """Return the errno of opening a NIC and registering host memory; 0 if both succeed."""
    rdma = examination.node.rdma
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    device = next((device for device in devices if device.name == nic), None)
    provider = "libefa.so.1" if needs_plugin(tree) else "libmlx5.so.1"
    if device is None or not tree.is_there(f"{library_directory(tree)}/{provider}"):
        return errno.ENODEV
    file = known(device.uverbs, "")
    if file not in tree.files or file in tree.denied:
        return errno.EACCES
    return host_error(examination, _HOST_BYTES) or 0


def _failing_call(number: int) -> str:
    return NIC_CALLS[-1] if number == errno.ENOMEM else NIC_CALLS[1]


def _gpu_answers(tree: Tree, gpu: str) -> Iterator[tuple[str, str, int]]:
    devices = cuda.devices(tree, {})
    if isinstance(devices, int):
        yield "", GPU_CALLS[0], devices
        return
    yield "", GPU_CALLS[0], 0
    is_listed = any(device.bdf == gpu for device in devices)
    yield "", GPU_CALLS[1], 0 if is_listed else _NOT_LISTED
    if not is_listed:
        return
    yield "", COMPUTE_MODE, 0
    supported = (tree.description.offers_gdr, tree.description.exports_dmabuf)
    for name, is_supported in zip(SUPPORTED, supported, strict=True):
        yield "", name, int(is_supported)
    if any(supported):
        for call in GPU_CALLS[2:]:
            yield "", call, 0


def _peer_memory_error(tree: Tree, examination: Examination, nic: str) -> int:
    direct = examination.node.gpudirect
    if not isinstance(direct, Unknown) and direct.nic_peermem.get(nic) is False:
        return errno.EFAULT
    if needs_plugin(tree):  # EFA has a peer-memory module of its own
        return 0
    return peermem_error(tree, examination) or 0
