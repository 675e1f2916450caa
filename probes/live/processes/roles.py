"""What a process is, and its rank in a job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.process_files import RANKS, WORLD_SIZES
from probes.facts.jobs.processes import Process, program_of
from probes.live.model.sample import Role

_PERFTEST = re.compile(r"(?:ib|raw_ethernet)_(?:write|read|send|atomic|burst|fs)_?(?:bw|lat|rate)?")
# Storage programs with queue pairs of their own; clients in the kernel (Lustre, NFS) have no process.
_STORAGE = re.compile(
    r"mmfsd|weka(?:node|fs|nodes?)?|beegfs-[a-z]{1,16}|daos_[a-z]{1,16}|ceph-(?:osd|mon|mds|fuse)|nvmf_tgt"
    r"|spdk_tgt|iscsi_tgt|reactor_[0-9]{1,4}|io_engine|glusterfs[a-z]{0,2}|pvfs2-[a-z]{1,12}|orangefs|xrootd"
    r"|vast[a-z-]{0,12}|lightbits|gds_[a-z]{1,12}"
)
_LARGEST_RANK = 10_000_000


def role_of(process: Process, threads: Maybe[tuple[str, ...]], has_rdma: bool) -> Role:
    """Return the role: by the program's name, then by NCCL's threads, then by the libraries it maps."""
    names = {program_of(process), known(process.comm, "")}
    if any(_PERFTEST.fullmatch(name) for name in names):
        return Role.PERFTEST
    if any(_STORAGE.fullmatch(name) for name in names):
        return Role.STORAGE
    if any(name.startswith("NCCL ") for name in known(threads, ())):
        return Role.NCCL
    libraries = {library.name for library in known(process.libraries, ())}
    if "libnvshmem_host" in libraries:
        return Role.NVSHMEM
    # PyTorch maps both libraries. NCCL ≥ 2.14 names its threads, so without these the process uses UCX.
    if has_rdma and "libucp" in libraries and not isinstance(threads, Unknown):
        return Role.UCX
    if "libnccl" in libraries:
        return Role.NCCL
    if "libucp" in libraries:
        return Role.UCX
    return Role.OTHER if has_rdma else Role.GPU


def rank_of(process: Process) -> Maybe[int]:
    """Return the rank among the processes of all nodes."""
    return _number(process, RANKS, "no variable with a rank")


def world_size_of(process: Process) -> Maybe[int]:
    """Return the number of ranks on all nodes."""
    return _number(process, WORLD_SIZES, "no variable with the number of ranks")


def _number(process: Process, names: Sequence[str], missing: str) -> Maybe[int]:
    environment = process.environment
    if isinstance(environment, Unknown):
        return environment
    for name in names:
        value = environment.get(name, "")
        if re.fullmatch(r"[0-9]{1,8}", value) and int(value) <= _LARGEST_RANK:
            return int(value)
    return Unknown(Reason.NOT_THERE, f"/proc/{process.pid}/environ", missing)
