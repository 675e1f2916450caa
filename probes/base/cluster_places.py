"""Where this site has the clients of its cluster; all commands of a run look there."""

from __future__ import annotations

from probes.base.frozen import frozen


@frozen
class ClusterPlaces:
    """The [cluster] table of the configuration."""

    commands: str = ""  # the directory of sinfo, scontrol, kubectl; "": a usual one
    slurm_conf: str = ""  # the file for SLURM_CONF where the environment has none


_in_force = [ClusterPlaces()]


def set_cluster_places(places: ClusterPlaces) -> None:
    """Put these in force: gdrtop does it once, when it has read its configuration."""
    _in_force[0] = places


def cluster_places() -> ClusterPlaces:
    """Return those in force."""
    return _in_force[0]
