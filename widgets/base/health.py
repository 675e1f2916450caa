"""The tones and marks of what gdrtop states, the same on all screens."""

from probes.base.evidence import Severity
from probes.checks.statements import Health
from widgets.base.lines import Run, Tone

TONES = {
    Health.CRITICAL: Tone.BAD,
    Health.WARNING: Tone.WARNING,
    Health.UNKNOWN: Tone.DIM,
    Health.PLAIN: Tone.PLAIN,
    Health.GOOD: Tone.GOOD,
}
SEVERITY_MARKS = {
    Severity.CRITICAL: Run("✗", Tone.BAD),
    Severity.WARNING: Run("▲", Tone.WARNING),
    Severity.NOTE: Run("·"),
}
