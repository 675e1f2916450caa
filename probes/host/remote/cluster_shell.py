"""ClusterShell without configuration files of its own; gdrtop takes it from here only.

By itself it reads defaults.conf when it is imported, topology.conf and groups.conf: in HOME, which under sudo
may be another user's, and in CLUSTERSHELL_CFGDIR. They name modules to import and commands to run. gdrtop
needs nothing of them: it sets its defaults itself, and names the files of groups.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable


class _NoFiles(configparser.ConfigParser):
    """A parser that opens no file."""

    def read(self, filenames: object, encoding: str | None = None) -> list[str]:  # type: ignore[override]
        del filenames, encoding
        return []


def _no_paths(name: str) -> Iterable[str]:
    del name
    return []


_parser = configparser.ConfigParser
configparser.ConfigParser = _NoFiles  # type: ignore[misc]
try:
    import ClusterShell.Defaults
finally:
    configparser.ConfigParser = _parser  # type: ignore[misc]
ClusterShell.Defaults.config_paths = _no_paths

from ClusterShell.NodeSet import NodeSet, NodeSetException  # noqa: E402
from ClusterShell.NodeUtils import (  # noqa: E402
    GroupResolver,
    GroupResolverConfig,
    GroupResolverError,
    GroupResolverSourceError,
    GroupSourceError,
    GroupSourceNoUpcall,
    UpcallGroupSource,
)

__all__ = ["GroupResolver", "GroupResolverConfig", "GroupResolverError", "GroupResolverSourceError"]
__all__ += ["GroupSourceError", "GroupSourceNoUpcall", "NodeSet", "NodeSetException", "UpcallGroupSource"]
