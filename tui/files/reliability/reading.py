"""Read the history of a node's NICs and GPUs; the database is not changed."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.component_history import (
    LEAST_COMPARED_SECONDS,
    MOST_COMPONENTS,
    MOST_JOBS,
    MOST_NUMBER,
    SOURCE,
    Component,
    ComponentHistory,
    JobPart,
    Loss,
    Mark,
    PastJob,
)
from tui.files.reliability.database import (
    ROOTS_DIRECTORY,
    HistoryError,
    explained,
    history_path,
    require_file,
    require_own,
)

if TYPE_CHECKING:
    import sqlite3

NOT_KEPT = Unknown(Reason.NOT_THERE, SOURCE, "gdrtop watch has kept no history of this node for this user")
_READ_SECONDS = 1.0
_STEPS = 10_000  # of SQLite's machine, between two looks at the clock
_MOST_TEXT = 200
_MARKS = frozenset(mark.value for mark in Mark)
_ORDER = f"ORDER BY id DESC LIMIT {MOST_JOBS}"  # by when they were written, not by the node's clock
_COMPARED = f"SELECT job FROM part WHERE compared >= {LEAST_COMPARED_SECONDS}"
_NEWEST = (
    f"SELECT id FROM (SELECT id FROM job {_ORDER})"
    f" UNION SELECT id FROM (SELECT id FROM job WHERE id IN ({_COMPARED}) {_ORDER})"
)


def read_history(path: str | None = None) -> Maybe[ComponentHistory]:
    """Return the history in a database, by default this host's; NOT_THERE: there is none."""
    path = history_path() if path is None else path
    if not path or not os.path.lexists(path):
        is_hidden = os.geteuid() != 0 and os.path.exists(os.path.dirname(ROOTS_DIRECTORY))
        hidden = Unknown(Reason.NEEDS_ROOT, SOURCE, "root's gdrtop watch may have kept one")
        return hidden if is_hidden else NOT_KEPT
    try:
        with explained(path):
            require_file(path)
            with closing(_opened(path)) as connection:
                if not require_own(connection, path):
                    return NOT_KEPT
                return _read(connection)
    except HistoryError as error:
        return Unknown(Reason.IO_ERROR, SOURCE, str(error))
    except (TypeError, ValueError, OverflowError):
        return Unknown(Reason.MALFORMED, SOURCE, f"{printable(path)} is damaged; remove it")


def _opened(path: str) -> sqlite3.Connection:
    import sqlite3
    from urllib.parse import quote

    # Without a log there is no writer: SQLite adds no files of its own when it reads an immutable database.
    is_written = os.path.exists(f"{path}-wal")
    mode = "mode=ro" if is_written else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(path)}?{mode}", uri=True, timeout=_READ_SECONDS)
    deadline = time.monotonic() + _READ_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    for pragma in ("trusted_schema = OFF", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _read(connection: sqlite3.Connection) -> Maybe[ComponentHistory]:
    kept = connection.execute("SELECT began, until FROM kept LIMIT 1").fetchone()
    if kept is None:
        return NOT_KEPT
    jobs: dict[int, int] = {}
    past: list[PastJob] = []
    for number, name, began, ended in connection.execute(
        f"SELECT id, name, began, ended FROM job WHERE id IN ({_NEWEST}) ORDER BY id DESC"
    ):
        jobs[number] = len(past)
        past.append(PastJob(_text(name), _number(began), _number(ended)))
    part_counts = _counts(
        connection, f"SELECT job, component, mark, number FROM part_count WHERE job IN ({_NEWEST})"
    )
    parts: dict[int, list[JobPart]] = {}
    for job, component, compared, slow in connection.execute(
        f"SELECT job, component, compared, slow FROM part WHERE job IN ({_NEWEST})"
    ):
        if job in jobs:
            counts = part_counts.get((job, component), {})
            part = JobPart(jobs[job], _number(compared), _number(slow), counts)
            parts.setdefault(component, []).append(part)
    counts_of = _counts(
        connection, "SELECT component, mark, sum(number) FROM day_count GROUP BY component, mark"
    )
    components = tuple(
        Component(
            _text(key),
            _text(name),
            bool(is_gpu),
            _text(bdf),
            tuple(sorted(parts.get(number, ()), key=lambda part: part.job)),
            counts_of.get((number,), {}),
        )
        for number, key, name, is_gpu, bdf in connection.execute(
            "SELECT id, key, name, is_gpu, bdf FROM component ORDER BY seen DESC, id LIMIT ?",
            (MOST_COMPONENTS,),
        )
    )
    return ComponentHistory(_number(kept[0]), _number(kept[1]), tuple(past), components, _losses(connection))


def _counts(connection: sqlite3.Connection, query: str) -> dict[tuple[int, ...], dict[str, int]]:
    """Return the numbers of a query by what is before mark and number in its rows."""
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for *key, mark, number in connection.execute(query):
        if mark in _MARKS:
            found.setdefault(tuple(key), {})[mark] = int(_number(number))
    return found


def _losses(connection: sqlite3.Connection) -> tuple[Loss, ...]:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'loss'").fetchone() is None:
        return ()  # an earlier gdrtop has written it
    rows = connection.execute(
        "SELECT finding, sum(gpu), sum(seen), sum(job), sum(rated), sum(lost)"
        " FROM loss GROUP BY finding LIMIT ?",
        (MOST_COMPONENTS,),
    )
    return tuple(Loss(_text(finding), *map(_number, figures)) for finding, *figures in rows)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= MOST_NUMBER:
        raise TypeError(value)
    return round(float(value), 1)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return printable(value, _MOST_TEXT)
