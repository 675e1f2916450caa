"""Lines with terminal colors (SGR sequences) as toned lines, in the colors of the screen."""

from __future__ import annotations

import re

from widgets.base.lines import Line, Run, Tone

_SEQUENCE = re.compile(r"\x1b\[([0-9;]{0,32})m")
# ECMA-48 SGR: the eight colors, plain and bright.
_TONES = {
    1: Tone.TITLE,
    2: Tone.DIM,
    31: Tone.BAD,
    32: Tone.GOOD,
    33: Tone.WARNING,
    34: Tone.NIC,
    36: Tone.NIC,
    90: Tone.DIM,
    91: Tone.BAD,
    92: Tone.GOOD,
    93: Tone.WARNING,
    94: Tone.NIC,
    96: Tone.NIC,
}


def toned(text: str) -> Line:
    """Return a line of text with SGR sequences as runs; colors other than the common ones are plain."""
    runs: list[Run] = []
    tone = Tone.PLAIN
    end = 0
    for match in _SEQUENCE.finditer(text):
        if match.start() > end:
            runs.append(Run(text[end : match.start()], tone))
        end = match.end()
        tone = _tone_after(tone, match[1])
    if end < len(text):
        runs.append(Run(text[end:], tone))
    return tuple(runs)


def _tone_after(tone: Tone, parameters: str) -> Tone:
    codes = [int(code[:4] or 0) for code in parameters.split(";")]
    if codes and codes[0] in (38, 48):  # one of 256 colors or more: no tone matches
        return tone
    for code in codes:
        if code in (0, 22, 39):
            tone = Tone.PLAIN
        # A color says more than bold does.
        elif code in _TONES and not (code == 1 and tone is not Tone.PLAIN):
            tone = _TONES[code]
    return tone
