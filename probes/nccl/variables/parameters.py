"""The variables that releases of NCCL read, documented or not: first and last version, and defaults."""

from __future__ import annotations

from functools import cache

from probes.base.frozen import frozen
from probes.nccl.variables.variable import Version, parse_version


@frozen
class Parameter:
    """A line of parameters.txt."""

    name: str
    first: str  # the first version that reads it
    last: str  # the last version that names it
    defaults: tuple[tuple[str, str], ...]  # (since version, as the source has it), oldest first

    def default(self, version: Version) -> str:
        """Return the default of a version as the source has it; "" if it has none."""
        return next(
            (value for since, value in reversed(self.defaults) if parse_version(since) <= version), ""
        )


@cache
def parameters() -> dict[str, Parameter]:
    """Return the table by the names of the variables."""
    from importlib.resources import files  # costs a command that does not need it some milliseconds

    lines = files(__package__).joinpath("parameters.txt").read_text(encoding="utf-8").splitlines()
    found = (_parameter(*line.split()) for line in lines if line[:1] != "#")
    return {parameter.name: parameter for parameter in found}


def newest() -> str:
    """Return the newest version of the table."""
    return max((parameter.last for parameter in parameters().values()), key=parse_version)


def _parameter(name: str, span: str, *defaults: str) -> Parameter:
    first, _, last = span.partition("-")
    pairs = (default.partition("=") for default in defaults)
    return Parameter(f"NCCL_{name}", first, last, tuple((since, value) for since, _, value in pairs))
