"""Faults that only the NCCL log of the training job shows, or in which it contradicts the node."""

from __future__ import annotations

from probes.simulation.faults.fault import Fault, fault
from probes.simulation.node.model.program import Program, Via
from probes.simulation.node.model.tree import Tree


def _ranks(tree: Tree) -> list[Program]:
    """Return the ranks of the training job that are connected."""
    return [program for program in tree.programs if program.is_nccl and program.nics]


def _differs(tree: Tree) -> None:
    """Let the first rank copy through host memory, although its log shows GPUDirect RDMA."""
    for rank in _ranks(tree):
        rank.via = Via.DMABUF
    for rank in _ranks(tree)[:1]:
        rank.via, rank.logged_via = Via.HOST, Via.DMABUF


def _gdr_disabled(tree: Tree) -> None:
    for rank in _ranks(tree):
        rank.via = Via.HOST


def _other_nics(tree: Tree) -> None:
    compute = {name for rank in _ranks(tree) for name in rank.nics}
    others = tuple(nic.name for nic in tree.nics if nic.name not in compute)
    for rank in _ranks(tree):
        rank.logged_nics = others


def _plugin_missing(tree: Tree) -> None:
    for rank in _ranks(tree):
        path = f"/proc/{rank.pid}/environ"
        environment = tree.files.get(path)
        if isinstance(environment, bytes):
            tree.add(path, environment + b"NCCL_NET_PLUGIN=ofi\0")
        rank.logged_lines += (
            "NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal net plugin.",
        )


def _other_setting(tree: Tree) -> None:
    for rank in _ranks(tree):
        rank.logged_lines += ("NCCL_NET_GDR_LEVEL set by environment to SYS",)


def _errors(tree: Tree) -> None:
    for rank in _ranks(tree)[:1]:
        rank.logged_warnings += (
            "transport/net_ib.cc:2458 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40001> with "
            f"status=12 opcode=0 len=0 vendor err 129 (Recv) hca {rank.nics[0]}",
        )


FAULTS: tuple[Fault, ...] = (
    fault(
        "job-log-gdr-disabled",
        "The job's log says its NICs cannot use GPUDirect RDMA, although the node's can",
        _gdr_disabled,
    ),
    fault(
        "job-log-differs",
        "A rank's log shows GPUDirect RDMA, but the rank copies through host memory",
        _differs,
    ),
    fault("job-log-other-nics", "The job's log lists only NICs that are far from its GPUs", _other_nics),
    fault("job-log-plugin-missing", "The job's log says its network plugin was not found", _plugin_missing),
    fault(
        "job-log-other-setting",
        "The job's log shows a setting that its environment does not have",
        _other_setting,
    ),
    fault("job-log-errors", "The job's log has a completion error", _errors),
)
