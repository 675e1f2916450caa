"""The tone of what gdrtop states, the same on all screens."""

from probes.checks.statements import Health
from widgets.base.lines import Tone

TONES = {
    Health.CRITICAL: Tone.BAD,
    Health.WARNING: Tone.WARNING,
    Health.UNKNOWN: Tone.DIM,
    Health.PLAIN: Tone.PLAIN,
    Health.GOOD: Tone.GOOD,
}
