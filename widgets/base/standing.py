"""The tone of what gdrtop states, the same on all screens."""

from probes.checks.statements import Standing
from widgets.base.lines import Tone

TONES = {
    Standing.CRITICAL: Tone.BAD,
    Standing.WARNING: Tone.WARNING,
    Standing.UNKNOWN: Tone.DIM,
    Standing.PLAIN: Tone.PLAIN,
    Standing.GOOD: Tone.GOOD,
}
