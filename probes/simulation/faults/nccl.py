"""Faults in the settings of jobs for NCCL, UCX and NVSHMEM, and in what their NCCL logs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.simulation.faults.fault import ChangeTree, as_change, described, empty_gid
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.jobs.processes import FIRST_RANK, JOB, add_rank, default_libraries
from probes.simulation.node.jobs.programs import ranks
from probes.simulation.node.model.tree import Tree, Via
from probes.simulation.node.modules.modules import end_rdma_traffic

_pids = count(43000)


def _job(job: Mapping[str, Any]) -> ChangeTree:
    """Return a change that adds a process, of a job of its own or of the training job (`is_training`).

    Each has its own pid, so that faults combine. `job`: its `variables`, `libraries`, versions of `nccl`,
    `files` as it sees them, and the number of its `gpu`, or from the last one, -1.
    """
    pid = next(_pids)

    def change(tree: Tree) -> None:
        mapped = [path for version in job.get("nccl", [""]) for path in default_libraries(tree, version)]
        libraries = (*dict.fromkeys(mapped), *job.get("libraries", ()))
        gpu, owner = job.get("gpu", 0) % len(tree.gpus), JOB if job.get("is_training") else None
        add_rank(tree, pid, gpu, job.get("variables", {}), libraries, job=owner)
        for path, text in job.get("files", {}).items():
            tree.add(f"/proc/{pid}/root{path}", text)

    return change


@as_change
def _set_class(tree: Tree, tclass: int) -> None:
    """Set the traffic class on the ports instead of in the jobs' settings."""
    tree.add(NCCL_CONF, tree.text(NCCL_CONF).replace(f"NCCL_IB_TC={tclass}\n", ""))
    for nic in tree.nics:
        tree.add(f"{nic.path}/infiniband/{nic.name}/tc/1/traffic_class", f"Global tclass={tclass}\n")


def _first_data_direct_down(tree: Tree) -> None:
    _take_down(next(nic.name for nic in tree.nics if nic.name in tree.dma_functions))(tree)


@as_change
def _take_down(tree: Tree, name: str) -> None:
    tree.add_values(port_of(tree.nic(name)), {"state": "1: DOWN", "phys_state": "2: Polling"})


@as_change
def _empty_gids(tree: Tree, count: int) -> None:
    """Empty the first entries, those of another network namespace, as a pod sees the table."""
    for nic in tree.nics:
        for index in range(count):
            empty_gid(tree, port_of(nic), index)


@as_change
def _warns(tree: Tree, line: str) -> None:
    """Let the first rank of the training job log a warning."""
    for rank in ranks(tree)[:1]:
        rank.logged_warnings += (line.format(nic=rank.nics[0]),)


@as_change
def _informs(tree: Tree, line: str) -> None:
    for rank in ranks(tree):
        rank.logged_lines += (line,)


def _set_variable(tree: Tree, pid: int, variable: str) -> None:
    path = f"/proc/{pid}/environ"
    environment = tree.files.get(path)
    if isinstance(environment, bytes):
        tree.add(path, environment + f"{variable}\0".encode())


@as_change
def _over_tcp(tree: Tree, variable: str) -> None:
    """Set a variable of the training job, which then uses TCP instead of RDMA."""
    for number in range(len(tree.gpus)):
        _set_variable(tree, FIRST_RANK + number, variable)
    end_rdma_traffic(tree)


@as_change
def _interrupts_on(tree: Tree, cpu: str) -> None:
    """Send every interrupt of the NICs to one CPU."""
    for path in [path for path in tree.files if path.startswith("/proc/irq/")]:
        tree.add(path, f"{cpu}\n")


def _differs(tree: Tree) -> None:
    """Let the first rank copy through host memory, although its log shows GPUDirect RDMA."""
    for rank in ranks(tree):
        rank.via = Via.DMABUF
    for rank in ranks(tree)[:1]:
        rank.via, rank.logged_via = Via.HOST, Via.DMABUF


def _gdr_disabled(tree: Tree) -> None:
    for rank in ranks(tree):
        rank.via = Via.HOST


def _other_nics(tree: Tree) -> None:
    compute = {name for rank in ranks(tree) for name in rank.nics}
    others = tuple(nic.name for nic in tree.nics if nic.name not in compute)
    for rank in ranks(tree):
        rank.logged_nics = others


def _plugin_missing(tree: Tree) -> None:
    for rank in ranks(tree):
        _set_variable(tree, rank.pid, "NCCL_NET_PLUGIN=ofi")
    _informs("NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal net plugin.")(tree)


# fmt: off
FAULTS = tuple(described(
    "nccl", globals(), job=_job, port_down=_take_down, class_of_ports=_set_class, empty_gids=_empty_gids,
    over_tcp=_over_tcp, interrupts_on=_interrupts_on, informs=_informs, warns=_warns,
))
