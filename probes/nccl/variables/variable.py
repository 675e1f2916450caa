"""One variable of NCCL, UCX, NVSHMEM or libfabric as data: meaning, defaults by version, values."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import version_numbers

NEWEST = (2, 32)
"""The newest NCCL that gdrtop knows (2.32.7 of November 2026), assumed where the version is unknown."""
NEWER = f"newer than {'.'.join(map(str, NEWEST))}, the newest that gdrtop knows"
Version = tuple[int, ...]


def is_newer(version: Version) -> bool:
    """Return whether NCCL is newer than any that gdrtop knows."""
    return version[:2] > NEWEST


class Kind(Enum):
    """How a library reads the value of a variable."""

    LEVEL = "level"  # NCCL's distance: LOC … SYS, or a legacy number
    NUMBER = "number"  # as strtoll(…, 0) reads it
    HCA_LIST = "list of NICs"  # [^][=]NAME[:PORT],…
    INTERFACES = "list of interfaces"  # [^][=]PREFIX,…
    WORD = "word"  # one of `values`, or free text
    WORDS = "list of words"  # [^]WORD,…; since 2.24 also FUNCTION:[^]WORD,… after semicolons
    PATH = "path"


@frozen
class Variable:
    """One variable. Versions are of the library that reads it; "" means from its first version on."""

    name: str
    meaning: str  # begins in lower case, without a full stop
    kind: Kind = Kind.WORD
    defaults: tuple[tuple[str, str], ...] = ()  # (since version, value), oldest first; (): unset
    values: tuple[tuple[str, str], ...] = ()  # value -> what it does
    is_closed: bool = False  # no other values than these
    ignores_case: bool = False  # of the words
    limits: tuple[int, int] | None = None  # of a NUMBER
    since: str = ""
    removed: str = ""  # the first version without it
    instead: str = ""  # the variable that replaced it
    notes: tuple[str, ...] = ()  # sentences: differences between versions, common mistakes
    for_debugging: bool = False  # NVIDIA lists it under "Debugging": not for production
    reference: str = ""

    @property
    def meaning_sentence(self) -> str:
        """The meaning as a sentence: "The RoCE GID; …."."""
        return f"{self.name}: {self.meaning}."

    def unknown_words(self, value: str) -> list[str]:
        """Return the words of a value that a closed variable does not know.

        A list begins with “^” for all but these; since 2.24 NCCL accepts FUNCTION:LIST after semicolons
        (src/graph/tuning.cc).
        """
        if not self.is_closed:
            return []
        words = [value]
        if self.kind is Kind.WORDS:
            lists = (part.rpartition(":")[2].removeprefix("^") for part in value.split(";"))
            words = [word for part in lists for word in part.split(",") if word]
        known = {word.lower() if self.ignores_case else word for word, _ in self.values}
        return [word for word in words if (word.lower() if self.ignores_case else word) not in known]

    def default(self, version: Version = NEWEST) -> str:
        """Return the default of a version; "" if it is unset or depends on the platform."""
        found = ""
        for since, value in self.defaults:
            if parse_version(since) <= version:
                found = value
        return found


def parse_version(text: str) -> Version:
    """Return the numbers of "2.21.5"; () for text without numbers."""
    return version_numbers(text)[:4]


_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def nccl_variable(
    name: str, meaning: str, kind: Kind = Kind.WORD, anchor: str = "", **facts: Any
) -> Variable:
    """Return a variable of NCCL; `anchor`: its section of the user guide, if not that of its name."""
    section = anchor or name.lower().replace("_", "-")
    return Variable(name, meaning, kind, reference=f"{_GUIDE}#{section}", **facts)


_LIBRARIES = r"(?:NCCL|UCX|FI|NVSHMEM)_"
_OF_BUILDS = (  # NCCL_HOME, UCX_DIR: of scripts and build systems; no library reads them
    r"(?:NCCL|UCX)_(?:HOME|ROOT|DIR|PATH|PREFIX|VERSION|VER|LIB|LIB_DIR|INCLUDE|INCLUDE_DIR|SRC|SRC_DIR|BRANCH|TAG)"
    r"(?![A-Za-z0-9_])|NCCL_TESTS?_"
)
VARIABLE_NAME = re.compile(rf"(?!{_OF_BUILDS}){_LIBRARIES}[A-Za-z0-9_]{{1,60}}|RDMAV_FORK_SAFE")
"""The names of variables that gdrtop judges; of FI_ and UCX_ most are not in the catalogue.

NCCL_TESTS_… are variables of nccl-tests.
"""
