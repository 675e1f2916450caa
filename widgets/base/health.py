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


def tone_of(severity: Severity | None) -> Tone:
    """Return the tone of a value that is so bad; None: it is fine."""
    return Tone.PLAIN if severity is None else SEVERITY_MARKS[severity].tone
