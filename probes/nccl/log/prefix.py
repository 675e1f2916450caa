r"""Undo what launchers and terminals add to a line: tags, colors, CRLF, glued and endless lines.

NCCL itself begins a line with `host:pid:tid [device] ` and, for warnings, `file:line ` (debug.cc). From 2.26
on a time may stand before that. Launchers put their own tags before: `[1,0]<stdout>:` (mpirun),
`[default0]:` (torchrun), `0: ` (srun), `[pod/name/container] ` (kubectl). Docker's json-file driver writes
`{"log":"…\n","stream":"stdout",…}` (moby daemon/logger/jsonfilelog).
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen

MAX_LINE_BYTES = 1 << 16
_WINDOW_BYTES = 512  # what is searched before "NCCL" for its prefix
CUT_MARK = b"\x7f"  # ends a line of which a part was dropped

# Escape sequences never reach over a line end here.
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-9:;<=>?]{0,64}[ -/]{0,8}[@-~]"
    rb"|\][^\x07\x1b\r\n]{0,1024}(?:\x07|\x1b\\)|[ -/]{0,4}[0-Z\\^-~])"
)
_DOCKER = re.compile(rb'(?<![^\r\n])\{"log":"([^"\\\r\n]*(?:\\.[^"\\\r\n]*)*)","stream":"[^\r\n]*')
_JSON_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")
_HOST = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_MOST_HOST = 255
_HEADER_END = re.compile(rb" \[(-?\d{1,5})\] (?:([^\[\]\r\n]{1,200}) )?$")
_IDS = re.compile(rb":(\d{1,10}):\d{1,10}$")
_NEXT_HEADER = re.compile(r":\d{1,10}:\d{1,10} \[-?\d{1,5}\] ")


@frozen
class Header:
    """Who wrote a line."""

    host: str
    pid: int
    device: int
    source: str = ""  # line of NCCL's source, of a warning: "transport/nvls.cc:254"
    is_glued: bool = False  # another line stands before it, and its end may be taken for the host's begin


def clean(block: bytes) -> bytes:
    """Return whole lines without escape sequences and without the end of endless lines.

    All newlines stay, so lines can still be counted.
    """
    if _may_have_long_line(block):
        block = b"".join(map(_shortened, block.splitlines(keepends=True)))
    if b'{"log":"' in block:
        block = _DOCKER.sub(_docker_text, block)
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block)
    return block


def _shortened(line: bytes) -> bytes:
    if len(line) <= MAX_LINE_BYTES:
        return line
    text = line.rstrip(b"\r\n")
    return line if len(text) <= MAX_LINE_BYTES else text[:MAX_LINE_BYTES] + CUT_MARK + line[len(text) :]


def _docker_text(line: re.Match[bytes]) -> bytes:
    """Return the text of a line of Docker, which divides long lines; only the last part has a newline."""
    if b"NCCL" not in line[1]:
        return line[0]
    text = _JSON_ESCAPE.sub(_character, line[1])
    return text if line[1].endswith(b"\\n") else text + CUT_MARK


def _character(escape: re.Match[bytes]) -> bytes:
    if escape[1]:
        code = int(escape[1], 16)
        return b"" if code == 10 else chr(code).encode("utf-8", "replace")
    return {b"n": b"", b"r": b"\r", b"t": b"\t"}.get(escape[2], escape[2])


def _may_have_long_line(block: bytes) -> bool:
    step = MAX_LINE_BYTES // 2
    return any(
        block.find(b"\n", start, start + step) < 0 and block.find(b"\r", start, start + step) < 0
        for start in range(0, len(block) - step, step)
    )


def header_before(block: bytes, start: int, line_start: int) -> Header | None:
    """Return the prefix that ends at `start`, where "NCCL" begins; None if it was cut off."""
    window = block[max(line_start, start - _WINDOW_BYTES) : start]
    bracket = window.rfind(b" [")
    device = _HEADER_END.match(window, bracket) if bracket >= 0 else None
    ids = _IDS.search(window, max(0, bracket - 22), bracket) if device else None
    if device is None or ids is None:
        return None
    before = window[: ids.start()]
    host = before[len(before.rstrip(_HOST)) :][-_MOST_HOST:]
    if not host:
        return None
    is_glued = block.find(b"NCCL ", line_start, start) >= 0
    source = (device[2] or b"").decode("utf-8", "replace")
    return Header(host.decode("ascii"), int(ids[1]), int(device[1]), source, is_glued)


def writer_of(prefix: bytes) -> bytes:
    """Return the part of a line's prefix that decides its header, unless another line is glued to it."""
    if prefix.count(b" ") <= 2:
        return prefix
    return prefix[prefix.rfind(b" ", 0, max(0, prefix.rfind(b" ["))) + 1 :]


def before_next_header(message: str) -> str:
    """Return a message without another one that was glued to it."""
    match = _NEXT_HEADER.search(message)
    return message if match is None else message[: match.start()].rstrip(_HOST.decode("ascii"))
