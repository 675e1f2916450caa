"""The cloud that a node belongs to, from DMI."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Provider(Enum):
    """Clouds whose GPU nodes need settings of their own."""

    AZURE = "Azure"
    AWS = "AWS"
    GOOGLE = "Google Cloud"
    ORACLE = "Oracle Cloud"


@dataclass(frozen=True)
class Cloud:
    """A cloud's node."""

    provider: Provider
    machine: str  # "p5.48xlarge"; "" where DMI does not name it
