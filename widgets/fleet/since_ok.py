"""What has changed on a node since it last worked: in one line, and in full."""

from __future__ import annotations

from probes.base.text import capitalized, plural, printable
from probes.base.unknown import Unknown
from probes.fleet.compare import Change, Changes
from widgets.base.figures import ago, local_time
from widgets.base.lines import Line, Run, Tone, cut, width_of, wrapped
from widgets.fleet.differences import label_of, labels_of
from widgets.node import verdict as verdict_drawing

_MOST_CHANGES = 3
_MOST_VALUE = 40  # characters in the line
_SHORTER = tuple((1, characters) for characters in (30, 20, 12))  # numbers of changes, and of characters


def draw_line(since: Changes | Unknown, width: int) -> Line:
    """Draw "Since it last worked, 2 d ago: kernel 6.8.0-45 → 6.8.0-48 and 2 more" in one line.

    It names as many changes as there is room for, at most three.
    """
    if isinstance(since, Unknown) or not since.changes:
        return cut((Run(text_of(since), _tone(since)),), width)
    most = min(_MOST_CHANGES, len(since.changes))
    for count, characters in (*((count, _MOST_VALUE) for count in range(most, 0, -1)), *_SHORTER):
        drawn = (Run(text_of(since, count, characters), _tone(since)),)
        if width_of(drawn) <= width:
            break
    return cut(drawn, width)


def draw_wrapped(since: Changes | Unknown, width: int, indent: str) -> list[Line]:
    """Draw the same in as many lines as it needs, with at most three changes."""
    return wrapped(text_of(since), width, _tone(since), indent)


def text_of(since: Changes | Unknown, count: int = _MOST_CHANGES, characters: int = _MOST_VALUE) -> str:
    """Return the line with so many changes, each value with so many characters; or why there is none."""
    if isinstance(since, Unknown):
        return since.detail
    named = ", ".join(_short(change, characters) for change in since.changes[:count])
    more = len(since.changes) - count
    what = f"{named}{f' and {more} more' if more > 0 else ''}" or "nothing that gdrtop compares has changed"
    return f"Since it last worked, {_age(since)}: {what}"


def _tone(since: Changes | Unknown) -> Tone:
    return Tone.WARNING if isinstance(since, Unknown) else Tone.PLAIN


def draw_changes(since: Changes, width: int) -> list[Line]:
    """Draw the whole answer: how much has changed, the verdicts then and now, and each change."""
    count = len(since.changes)
    amount = plural(count, "change") if count else "No change in the facts that gdrtop compares"
    lines = wrapped(f"{amount} since {since.now.name} last worked, {_age(since)}", width, Tone.TITLE)
    for word, summary in (("then", since.before), ("now", since.now)):
        begin = f"  {word:<4}  {local_time(summary.taken_at, '%Y-%m-%d %H:%M:%S %Z')}  "
        forms = verdict_drawing.forms(summary.verdict)
        fitting = (form for form in forms if width_of(form) <= width - len(begin))
        lines.append((Run(begin, Tone.DIM), *next(fitting, forms[-1])))
    lines.extend(wrapped(since.now.verdict.reason, width, Tone.PLAIN, "        "))
    if since.changes:
        lines.append(())
    for change in since.changes:
        label = capitalized(label_of(change.fact, change.slots))
        whole = (Run(f"  {label}  "), Run(change.before), Run(" → ", Tone.DIM), Run(change.now, Tone.TITLE))
        if width_of(whole) <= width:
            lines.append(whole)
            continue
        lines.extend(wrapped(label, width, Tone.PLAIN, "  "))
        lines.extend(wrapped(f"{change.before} → {change.now}", width, Tone.TITLE, "    "))
    if since.unread:
        lines.extend([(), (Run("Cannot be compared", Tone.TITLE),)])
    for reason, facts in since.unread:
        lines.extend(wrapped(f"{labels_of(facts)}: {reason}", width, Tone.DIM, "  ", "  "))
    return lines


def _age(since: Changes) -> str:
    return ago(since.now.taken_at - since.before.taken_at)


def _short(change: Change, characters: int) -> str:
    """Return "NIC firmware of mlx5_0 and 3 more 28.39 → 28.40", each value with so many characters."""
    slots = change.slots
    if len(slots) > 1:
        slots = (f"{slots[0]} and {len(slots) - 1} more",)
    label = label_of(change.fact, slots)
    return f"{label} {printable(change.before, characters)} → {printable(change.now, characters)}"
