"""What moves the bytes of an inference engine now, from two readings of NICs, sockets and NVLink."""

from __future__ import annotations

from probes.live.model.transfer import (
    OVER_TCP,
    Certainty,
    Serving,
    ServingRole,
    TransferPath,
    TransferPeer,
    TransferWord,
)

__all__ = ["OVER_TCP", "Certainty", "Serving", "ServingRole", "TransferPath", "TransferPeer", "TransferWord"]
