"""All variables by name."""

from __future__ import annotations

from probes.nccl.variables import bootstrap, gpudirect, network, other_libraries
from probes.nccl.variables.undocumented import UNDOCUMENTED
from probes.nccl.variables.variable import Variable

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
    return name in CATALOGUE or name in UNDOCUMENTED
