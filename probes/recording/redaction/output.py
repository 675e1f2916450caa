"""Rules for the output of commands and for program files."""

from __future__ import annotations

import re

from probes.facts.kernel.log import recognize
from probes.recording.redaction.tokens import PROGRAM, SERIAL, Tokens

_STRINGS = (
    b"libcuda.so\0",
    b"libcuda.so",
    b"cuMemGetHandleForAddressRange",
    b"use_cuda_bus_id\0",
    b"use_cuda\0",
    b"use_cuda_dmabuf\0",
    b"ipv6-addr\0",
    b"ibv_reg_dmabuf_mr",
)


def program_strings(tokens: Tokens, content: bytes) -> bytes:
    """Keep only which of the strings that checks look for are in the program."""
    kept = b"\0".join(text for text in _STRINGS if text in content) + b"\0"
    return (content[:4] if content.startswith(b"\x7fELF") else b"redacted") + b"\0" + kept


_LOG_PREFIX = re.compile(r"((?:<\d{1,4}>)?\[[^\]]{1,40}\](?:\[[^\]]{1,20}\])? ?)(?:\S{1,64} kernel: )?(.*)")
_NAMED_VALUE = re.compile(
    r"(?i)\b((?:[a-z]*uid|[a-z]*gid|ses|acct|hostname|host|user|owner|comm|name|exe|terminal"
    r"|serial(?:[ _]?n(?:umber|o))?|s/?n|asset|wwn|wwid|id)[#]?)"
    r"(\s*[=:]\s*|-|\s+(?=0x|\w*\d))(\"[^\"]*\"|[^\s,;)]+)"
)


def kernel_log(tokens: Tokens, text: str) -> str:
    """Keep known messages, and the time of the first line: it shows how far back the log goes."""
    kept = []
    for line in text.split("\n"):
        match = _LOG_PREFIX.fullmatch(line[:1000])
        prefix, message = (match[1], match[2]) if match else ("", line[:1000])
        if not re.fullmatch(r"(?:<\d+>)?\[[ \d.]+\](?:\[[ TC\d]+\])? ?", prefix):
            prefix = tokens.text(prefix)
        if recognize(message, 0.0) is not None:
            kept.append(prefix + _message(tokens, message))
        elif not kept and match:
            kept.append(prefix)
    return "\n".join([*kept, ""])


def _message(tokens: Tokens, message: str) -> str:
    def named(found: re.Match[str]) -> str:
        kind = PROGRAM if found[1].lower() in ("comm", "name", "exe") else SERIAL
        value = found[3].strip('"')
        if found[1].lower().endswith("uid"):
            return f"{found[1]}{found[2]}{tokens.user_id(value)}"
        return f"{found[1]}{found[2]}{tokens.token(kind, value) if value.strip('-0x') else value}"

    # A value after its name is private even if it is a known word or a short number.
    pieces = re.split(
        r"(\x00[^\x00]*\x00)",
        _NAMED_VALUE.sub(lambda found: f"\0{named(found)}\0", message.replace("\0", " ")),
    )
    return "".join(piece.strip("\0") if piece.startswith("\0") else tokens.text(piece) for piece in pieces)


_MODINFO = r"(?:filename|name|version|srcversion|license|vermagic|depends|signer|sig_id|intree|parm):"


def modinfo(tokens: Tokens, text: str) -> str:
    """Keep the fields of modinfo that checks read."""
    kept = []
    for line in text.split("\n"):
        if re.match(_MODINFO, line) is None:
            continue
        key, _, value = line.partition(":")
        is_sum = key == "srcversion" and re.fullmatch(r"\s*[0-9A-F]{1,33}\s*", value)
        kept.append(line if is_sum else f"{key}:{tokens.text(value)}")
    return "\n".join([*kept, ""])


def help_text(tokens: Tokens, text: str) -> str:
    """Keep only the known options in the output of `PROGRAM --help`."""
    options = re.findall(r"-{1,2}[a-z][\w-]{0,40}", text)
    return "\n".join(dict.fromkeys(option for option in options if tokens.keeps(option)))
