"""The GPUs of a Slurm job on this node, and the NICs near them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.new_jobs import nics_near
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.system.numa import parse_list
from probes.slurm.gpu_order import GpuOrder, gpus_meant
from probes.snapshot.examination import Examination

_MOST_GPUS = 256
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_JOB = re.compile(r"[0-9]{1,10}")


@frozen
class SlurmJob:
    """What slurmd says of a job to its Prolog and Epilog (prolog_epilog.shtml, environment variables)."""

    id: str  # "" if slurmd has not said it
    gpus: tuple[str, ...]  # "0", or a UUID where gres.conf has Flags=env_uuid; () for a job without GPUs
    unreadable: str = ""  # what could not be read of the list of GPUs


@frozen
class JobDevices:
    """The devices of a job on this node."""

    gpus: tuple[str, ...]  # BDFs
    nics: tuple[str, ...]  # RDMA device names: the nearest of each GPU
    unplaced: tuple[str, ...]  # GPUs of the job that this node does not have, or MIG instances
    unsure: str = ""  # why `gpus` has more than the job's: all that its numbers can mean


def parse_job(environment: Mapping[str, str]) -> SlurmJob:
    """Return the job; numbers in SLURM_JOB_GPUS are places in slurmd's list of GPUs."""
    job = environment.get("SLURM_JOB_ID", "")
    text = environment.get("SLURM_JOB_GPUS") or environment.get("CUDA_VISIBLE_DEVICES") or ""
    gpus: list[str] = []
    unreadable = ""
    for word in text[:4096].split(","):
        numbers = parse_list(word)
        if numbers is not None:
            gpus += map(str, numbers)
        elif _UUID.fullmatch(word.strip()):
            gpus.append(word.strip())
        elif word.strip() != "NoDevFiles":  # Slurm's word for a job without GPUs
            unreadable = unreadable or printable(word, 40)
    own = tuple(dict.fromkeys(gpus[:_MOST_GPUS]))
    return SlurmJob(job if _JOB.fullmatch(job) else "", own, unreadable)


def devices_of(job: SlurmJob, examination: Examination, order: Maybe[GpuOrder]) -> JobDevices:
    """Return the GPUs of the job and the NICs near them; of equally near NICs, all.

    If the order of slurmd's list is unknown, a broken GPU counts that the job can have got.
    """
    gpus = examination.node.gpus
    uuids = {known(gpu.uuid, ""): gpu.bdf for gpu in gpus.gpus} if isinstance(gpus, GpuFacts) else {}
    meant = {name: gpus_meant(int(name), examination, order) if name.isdecimal() else () for name in job.gpus}
    meant |= {name: (uuids[name],) for name in job.gpus if name in uuids}
    found = tuple(dict.fromkeys(gpu for places in meant.values() for gpu in places))
    unplaced = tuple(name for name in job.gpus if not meant[name])
    why = f"gres.conf: {order}" if isinstance(order, Unknown) else "AutoDetect orders them in two ways"
    unsure = why if len(found) > len(job.gpus) - len(unplaced) else ""
    return JobDevices(found, nics_near(examination.topology, found), unplaced, unsure)
