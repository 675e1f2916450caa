"""The CPU's vendor, family and model, from /proc/cpuinfo: UCX chooses its defaults by them."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.system.platform import CPUINFO_LIMIT_BYTES
from probes.host.protocol import Host

CPUINFO = "/proc/cpuinfo"
_FIRST_BYTES = 64 * 1024


@frozen
class CpuModel:
    """The first processor of an x86 machine."""

    vendor: str  # "GenuineIntel"
    family: int
    model: int


def probe(host: Host) -> Maybe[CpuModel]:
    """Read /proc/cpuinfo, which is slow on nodes with many CPUs."""
    text = map_known(host.read_bytes(CPUINFO, CPUINFO_LIMIT_BYTES), lambda content: content[:_FIRST_BYTES])
    return map_known(text, lambda content: parse_cpu_model(content.decode("utf-8", "replace")))


def parse_cpu_model(text: str) -> Maybe[CpuModel]:
    """Parse the first processor; Arm has other fields, which UCX does not use for this."""
    fields: dict[str, str] = {}
    for line in text.lstrip("\n").partition("\n\n")[0].split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    numbers = [fields.get(name, "") for name in ("cpu family", "model")]
    if "vendor_id" not in fields:
        return Unknown(Reason.NOT_THERE, CPUINFO, "no vendor_id, as on Arm")
    if not all(number.isascii() and number.isdigit() and len(number) <= 4 for number in numbers):
        return Unknown(Reason.MALFORMED, CPUINFO, "no family and model")
    return CpuModel(printable(fields["vendor_id"], 32), int(numbers[0]), int(numbers[1]))
