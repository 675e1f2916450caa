"""NCCL's RAS service: the only commands that gdrtop sends, and addresses of this host.

The line protocol is the same in NCCL 2.24 to 2.32 (src/ras/client_support.cc). CONTROL changes the job, and
JSON leaks memory in it: they cannot be sent. DIAGNOSTICS runs checks inside the job, from 2.32 on with lspci
and rdma_topo: tui/runtime/ras_questions.py sends it only after a confirmation.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

STATUS, VERBOSE_STATUS, MONITOR = "STATUS", "VERBOSE STATUS", "MONITOR all"
DIAGNOSTICS = "DIAGNOSTICS"
REPORTS = (STATUS, VERBOSE_STATUS)
QUESTIONS = (*REPORTS, DIAGNOSTICS)
PORT = 28028
ANSWER_SECONDS = 12.0  # RAS itself gives up after 10 s
DIAGNOSTICS_SECONDS = 60.0
MAX_EVENTS = 1000  # of one call

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]{2,45})\]|(?P<v4>[^:\s\[\]]{1,64})):(?P<port>[0-9]{1,5})")
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class RasAddress(NamedTuple):
    """An IP address and a port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def parse_addresses(text: str) -> tuple[RasAddress, ...]:
    """Return the loopback addresses of NCCL_RAS_ADDR, "localhost:28028"; () for another host's or malformed.

    "localhost" is ::1 or 127.0.0.1, as the node resolves it.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"]) < 65536:
        return ()
    host, port = match["v6"] or match["v4"], int(match["port"])
    if host == "localhost":
        return RasAddress("::1", port), RasAddress("127.0.0.1", port)
    try:
        ip = ipaddress.ip_address(_ANY.get(host, host))
    except ValueError:
        return ()
    return (RasAddress(str(ip), port),) if ip.is_loopback else ()
