"""Rules for host names, sockets and routes."""

from __future__ import annotations

import ipaddress
import re

from probes.recording.redaction.tokens import HOST, Tokens


def host_name_file(tokens: Tokens, text: str) -> str:
    """Replace the host name in the first line of a file."""
    return "\n".join(host_name(tokens, line) for line in text.split("\n")[:1]) + "\n"


def host_name(tokens: Tokens, name: str) -> str:
    """Return the tokens of a host's name and of its domain."""
    short, dot, domain = name.strip().partition(".")
    return f"{tokens.name(HOST, short)}{dot}{tokens.name(HOST, domain) if domain else ''}"


def listening_sockets(tokens: Tokens, text: str) -> str:
    """Keep only listening sockets, without addresses, users and inodes."""
    kept = ["  sl  local_address rem_address   st"]
    for number, match in enumerate(
        re.finditer(r"^ *\d+: ([0-9A-F]{8,32}):([0-9A-F]{4}) \S+:0000 0A ", text, re.M)
    ):
        zero = "0" * len(match[1])
        kept.append(
            f"{number:4}: {zero}:{match[2]} {zero}:0000 0A 00000000:00000000 00:00000000 00000000     0"
        )
    return "\n".join([*kept, ""])


def routes(tokens: Tokens, text: str) -> str:
    """Replace addresses in /proc/net/route, which are little-endian numbers."""
    kept = []
    for line in text.splitlines():
        fields = enumerate(line.split("\t"))
        kept.append("\t".join(_route_field(tokens, column, field.strip()) for column, field in fields))
    return "\n".join([*kept, ""])


_ROUTE_MASK = 7  # column


def _route_field(tokens: Tokens, column: int, field: str) -> str:
    if not re.fullmatch(r"[0-9A-F]{8}", field):
        return tokens.text(field)
    address = ipaddress.IPv4Address(bytes.fromhex(field)[::-1])
    zeros = f"{int(address):032b}".lstrip("1")
    if not int(address) or (column == _ROUTE_MASK and "1" not in zeros):
        return field
    return ipaddress.IPv4Address(tokens.address(address)).packed[::-1].hex().upper()


def ipv6_routes(tokens: Tokens, text: str) -> str:
    """Replace addresses in /proc/net/ipv6_route: destination, source and next hop have 32 digits each."""

    def field(digits: str) -> str:
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        return ipaddress.IPv6Address(tokens.address(address)).packed.hex()

    kept = []
    for line in text.splitlines():
        *numbers, name = line.split() or [""]
        numbers = [text for text in numbers if re.fullmatch(r"[0-9a-f]{2}|[0-9a-f]{8}|[0-9a-f]{32}", text)]
        fields = [field(number) if len(number) == 32 else number for number in numbers]
        kept.append(" ".join((*fields, tokens.text(name))))
    return "\n".join([*kept, ""])
