"""Build and read logs."""

from __future__ import annotations

from probes.nccl.log.facts import LogFacts, LogVerdict
from probes.nccl.log.reader import LogReader
from probes.nccl.log.verdict import verdict_of

HEADER = "node1:100:200 [0] NCCL INFO "
WARNING = "node1:100:200 [0] transport/net_ib.cc:1296 NCCL WARN "


def read(text: str | bytes, name: str = "log", piece: int = 1 << 20) -> LogFacts:
    """Read a log in pieces of a size."""
    content = text.encode() if isinstance(text, str) else text
    reader = LogReader()
    reader.begin(name)
    for start in range(0, len(content), piece):
        reader.feed(content[start : start + piece])
    reader.end()
    return reader.facts()


def info(*messages: str) -> str:
    """Return whole lines of one rank."""
    return "".join(f"{HEADER}{message}\n" for message in messages)


def verdict(text: str | bytes) -> LogVerdict:
    """Return the verdict on a log."""
    return verdict_of(read(text))


def channel(
    direction: str = "send", gdr: bool = True, network: str = "IB/0", peers: str = "0[0] -> 8[0]"
) -> str:
    """Return a channel's line."""
    return f"Channel 00/0 : {peers} [{direction}] via NET/{network}{'/GDRDMA' if gdr else ''}"


LOG = "/home/alice/llm/slurm-4711.out"


def line(pid: int, message: str, host: str = "hgx-h100") -> str:
    return f"{host}:{pid}:{pid + 600} [0] NCCL INFO {message}\n"
