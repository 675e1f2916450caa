r"""Lines as programs wrote them: without what launchers, collectors, terminals and mails put around them.

What is taken off, until nothing more comes off: escape sequences, also with a lost ESC; Markdown quotes and
HTML entities; ranks of srun, mpirun and torchrun; actors of Ray; names and times of kubectl, containerd,
Docker and Compose; times of syslog, journald and dmesg; JSON objects that carry the line; line numbers. What
a collector cut in parts is joined.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator

MOST_OF_A_LINE = 1 << 16  # characters; the rest is dropped
_MOST_LAYERS = 8
_MOST_PARTS = 1000  # lines in one escaped line

_ESCAPES = re.compile(
    r"(?:\x1b|\\u001b|\\x1b|\\033|\\e|\^\[)\[[0-9:;<=>?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b\][^\x07\x1b]{0,1024}(?:\x07|\x1b\\)|\x1b[ -/]{0,4}[0-Z\\^-~]"
    r"|(?<!\[)(?:\[\d{1,2}(?:;\d{1,2}){0,3}m)*\[(?:\d{1,2}(?:;\d{1,2}){1,3}m|[0-9]{2}m|0m|m(?![a-z]))"
)
_MAY_ESCAPE = re.compile(r"\x1b|[bB3e]\[|\^\[|\[[\d;]{0,12}m")
_MAY_WRAP = frozenset("[<>({ \t&0123456789JFMASOND")  # first characters
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_WRAPPERS = re.compile(
    "|".join(
        (
            r"\s{0,3}(?:>|&gt;) ?",  # a quote
            r"\[(?:rank|default)\d{1,6}\]: ?",  # torchrun
            r"\[\d{1,6},\d{1,6}\]<std(?:out|err|diag)>: ?",  # mpirun --tag-output
            r"\s{0,5}\d{1,6}[:|]\s",  # srun -l; numbers of lines
            r"\((?:raylet|autoscaler[^()]{0,40}|[^()=]{1,80} pid=\d{1,10}[^()]{0,80}"
            r"|[^()=]{1,60} rank=\d{1,6}[^()]{0,80})\) ",  # Ray, vLLM
            r"\[pod/[^\]\s]{1,300}\] ",  # kubectl logs --prefix
            rf"{_TIME} std(?:out|err) (?P<part>[FP]) ",  # containerd
            rf"\[{_TIME} [A-Z]{{2}}\d{{1,4}}(?: [A-Z]{{2}}\d{{1,4}})*\] ",  # SGLang
            rf"\[?{_TIME}\]?:? +(?=\S)",
            rf"(?:<\d{{1,3}}>)?{_MONTH} [ \d]\d \d\d:\d\d:\d\d (?:\d{{4}} )?\S{{1,255}} "
            r"(?:[\w.@/-]{1,64}(?:\[\d{1,10}\])?: )",  # syslog, journald
            r"[\w.-]{1,255} (?:kernel|systemd\[\d{1,10}\]): ",  # the same, after its time
            r"[a-z0-9][\w.-]{0,62}-\d{1,4} +\| ",  # docker compose
            r"<\d{1,3}>(?:\[|(?=\w))",
            r"\d{1,3},\d{1,15},\d{1,18},[-c+](?:,[^;]{0,200})?;",  # /dev/kmsg
            r"(?:kern|user|daemon|syslog) {0,2}:[a-z]{2,6} {0,3}: ",  # dmesg -x
            rf"\[ *\d{{1,10}}\.\d{{6}}\] |\[\w{{3}} {_MONTH} [ \d]\d \d\d:\d\d:\d\d \d{{4}}\] ",  # dmesg
            r"\[ *[TC]\d{1,9}\] ",  # the caller
        )
    )
)
# A piece without any of these has plain lines, but for what stands at their beginnings.
_UNUSUAL = re.compile(
    r"[\x1b\r\\&]|[b3e^]\[|\[[\d;]{0,12}m|<br|```|~~~| kernel: | \| | systemd\[|</?(?:de|su|pr|co)"
    r"|(?:kern|user|daemon|syslog) {0,2}:[a-z]"
)
_FACILITY = re.compile(r"(?:kern|user|daemon|syslog) {0,2}:[a-z]")
_LOST_ESCAPE = re.compile(r"\[[\d;]{0,12}m")
_MESSAGE_KEYS = ("message", "msg", "log", "MESSAGE", "body", "textPayload", "_line", "line", "text")
_ENTITY = re.compile(r"&(?:gt|lt|amp|quot|apos|nbsp|#39|#34|#x27);")
_FENCE = re.compile(r"\s{0,3}(?:```|~~~)\w{0,20}\s*$|</?(?:details|summary|pre|code)>")
_MARKDOWN = re.compile(r"\\([_*\[\]<>#`])|<br */?>")


FENCE = "\f"
"""A line that only begins or ends a block of Markdown."""


class Lines:
    """Splits pieces of a text into lines, and takes off what is around them."""

    def __init__(self) -> None:
        self._carry = ""
        self._part = ""  # of a line that containerd or Docker cut
        self.number = 0

    def feed(self, piece: str) -> Iterator[str]:
        """Yield the lines that end in this piece; `number` is the one of the line yielded last."""
        text = self._carry + piece
        lines = text.split("\n")
        self._carry = lines.pop()[:MOST_OF_A_LINE]
        is_plain = not self._part and not _UNUSUAL.search(text)
        for line in lines:
            self.number += 1
            if is_plain and line[:1] not in _MAY_WRAP and len(line) <= MOST_OF_A_LINE:
                yield line
            else:
                yield from self._whole(line)
                is_plain = is_plain and not self._part

    def end(self) -> Iterator[str]:
        """Yield what is left."""
        if self._carry or self._part:
            self.number += bool(self._carry)
            yield from self._whole(self._carry)
            if self._part:
                yield self._part
        self._carry = self._part = ""

    def _whole(self, line: str) -> Iterator[str]:
        # After a carriage return, a terminal writes over the line.
        line = line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line
        text, is_part = peel(line[:MOST_OF_A_LINE])
        if is_part:
            self._part = (self._part + text)[:MOST_OF_A_LINE]
            return
        if self._part:
            text, self._part = (self._part + text)[:MOST_OF_A_LINE], ""
        if text.count("\\n") > 1 and "\\n" in text[:4000]:
            yield from text.replace("\\t", "\t").replace('\\"', '"').split("\\n", _MOST_PARTS)
        elif "\n" in text:
            yield from text.split("\n", _MOST_PARTS)
        else:
            yield text


def peel(line: str) -> tuple[str, bool]:
    """Return a line without what is around it, and whether it goes on in the next one."""
    is_part = False
    for _ in range(_MOST_LAYERS):
        before = line
        # Most lines have none, and a word is found faster than a pattern.
        has_bracket = "\x1b" in line or line.find("[", 1) > 0 or _LOST_ESCAPE.match(line)
        if has_bracket and _MAY_ESCAPE.search(line):
            line = _ESCAPES.sub("", line)
        if line[:1] == "{" or (line[:3].isspace() and line.lstrip()[:1] == "{"):
            line, is_part = _from_json(line)
        if line[:1] not in _MAY_WRAP and not _wraps_later(line[:280]):
            break
        if match := _WRAPPERS.match(line):
            rest = line[match.end() :]
            if match[0].startswith("<") and match[0].endswith("["):
                rest = f"[{rest}"
            if len(rest) < 3 and not match[0].startswith((">", " ")):
                break
            is_part = is_part or match["part"] == "P"
            line = rest
        if line == before:
            break
    if "&" in line and _ENTITY.search(line):
        line = html.unescape(line)
    if "\\" in line or "<br" in line:
        line = _MARKDOWN.sub(lambda match: match[1] or " ", line)
    return (FENCE if _FENCE.match(line) else line), is_part


def _wraps_later(line: str) -> bool:
    """Return whether a line that begins with a name may have something around it."""
    return " kernel: " in line or " | " in line or " systemd[" in line or bool(_FACILITY.match(line))


def _from_json(line: str) -> tuple[str, bool]:
    """Return the message that a JSON object of a collector carries, and whether Docker cut it."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return line, False
    holders = [content, content.get("jsonPayload")] if isinstance(content, dict) else []
    for holder in holders:
        if not isinstance(holder, dict):
            continue
        for key in _MESSAGE_KEYS:
            message = holder.get(key)
            if isinstance(message, list) and all(
                isinstance(byte, int) and 0 <= byte < 256 for byte in message
            ):
                message = bytes(message).decode("utf-8", "replace")  # journald
            if isinstance(message, str):
                is_part = key == "log" and "stream" in holder and not message.endswith("\n")
                return message.removesuffix("\n"), is_part
    return line, False
