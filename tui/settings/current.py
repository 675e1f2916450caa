"""The configuration of this run. A node without one loads nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tui.settings.configuration import Configuration

_current: list[Configuration | None] = [None]


def use(configuration: Configuration | None) -> None:
    """Make this the configuration of the run, None for none; its silences, rows and places are in force."""
    before, _current[0] = _current[0], configuration
    if configuration is not None or before is not None:
        from probes.base.site import ClusterPlaces, Site, set_site

        used = current()
        names = ("commands", "slurm_conf", "rdma_resources")
        places = (str(used.configured(f"cluster.{name}").value) for name in names)
        rows = tuple(used.combinations), tuple(used.silences), ClusterPlaces(*places), tuple(used.floors)
        set_site(Site(*rows, str(used.configured("site_url").value)))


def is_configured() -> bool:
    """Return whether this run has a configuration."""
    return _current[0] is not None


def current() -> Configuration:
    """Return the configuration of the run; without one, that in which all is default."""
    if _current[0] is None:
        from tui.settings.configuration import EMPTY

        return EMPTY
    return _current[0]
