"""Slurm on the node: its daemon, its configuration and the limits that it hands to jobs."""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.unknown import Maybe


@dataclass(frozen=True)
class SlurmFacts:
    """What Slurm's files say; NOT_THERE inside: the file or the line is absent."""

    version: Maybe[str]
    config: Maybe[str]  # "/etc/slurm/slurm.conf"; configless nodes have /run/slurm/conf/slurm.conf
    prolog: Maybe[str]
    health_check: Maybe[str]
    propagate_except: Maybe[str]  # PropagateResourceLimitsExcept
    memlock_unlimited: Maybe[bool]  # LimitMEMLOCK of slurmd's unit
