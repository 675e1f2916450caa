"""All variables by name, and which names NCCL reads besides them, so that only others are called unknown."""

from __future__ import annotations

from probes.nccl.variables import bootstrap, gpudirect, network, other_libraries
from probes.nccl.variables.parameters import parameters
from probes.nccl.variables.variable import Variable

# Names that parameters.txt does not have: of 2.32 (release notes of 2.32.3, debug.cc), and of a plugin beside
# NCCL (plugins/profiler/inspector).
_OTHERS = """
DEBUG_LEVELS HIER_CE_COLL_AG_RAIL_RING_ENABLE IB_SORT_MERGE_NICS INSPECTOR_COLL_POOL_SIZE
INSPECTOR_COMM_POOL_SIZE INSPECTOR_DUMP_COLL_RING_SIZE INSPECTOR_DUMP_DIR INSPECTOR_DUMP_MIN_SIZE_BYTES
INSPECTOR_DUMP_P2P_RING_SIZE INSPECTOR_DUMP_THREAD_ENABLE INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS
INSPECTOR_DUMP_VERBOSE INSPECTOR_ENABLE INSPECTOR_ENABLE_P2P INSPECTOR_OTEL_EXPORT INSPECTOR_OTEL_VERBOSE
INSPECTOR_P2P_POOL_SIZE INSPECTOR_POOL_GROW INSPECTOR_PROM_DUMP INSPECTOR_REQUIRE_KERNEL_TIMING
"""
_UNDOCUMENTED = frozenset(f"NCCL_{name}" for name in _OTHERS.split())


CATALOGUE: dict[str, Variable] = {
    variable.name: variable
    for table in (network, gpudirect, bootstrap, other_libraries)
    for variable in table.VARIABLES
}


def meaning_of(name: str) -> str:
    """Return what a variable means; "" if it is not in the catalogue."""
    return CATALOGUE[name].meaning if name in CATALOGUE else ""


def is_known(name: str) -> bool:
    """Return whether a library reads the variable, documented or not; NCCL_HOME is no variable of NCCL."""
    return name in CATALOGUE or name in _UNDOCUMENTED or name in parameters()


def similar_name(name: str) -> str:
    """Return the variable that an unknown name is almost; "": none, so only a plugin might read it. Slow."""
    from difflib import get_close_matches  # gdrtop check does not need it

    return next(iter(get_close_matches(name.upper(), CATALOGUE, n=1, cutoff=0.92)), "")
