"""The SQLite database with the history of a node's NICs and GPUs, one for each host name.

It has sums only, no samples: a row for each component in each job, and one a day for each kind of event. The
newest 84 days with such rows stay, and the file has at most 8 MiB. sqlite3 is imported on first use.

Days with rows are counted, and newer jobs are those that were written later, because the node's clock may be
wrong: one that is set forward by months must not make everything old.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from probes.base.data_files import read_text
from probes.base.text import printable
from probes.facts.node import Node
from probes.host.trusted_path import is_root, require_owner
from probes.live.model.sample import LiveSample
from probes.live.reliability import Changes, ComponentTally, JobChange
from probes.topology.paths import Topology
from tui.files.new_file import make_directory, shown_path, why, why_not_as_root
from tui.files.xdg import NO_HOME, STATE, own_directory

if TYPE_CHECKING:
    import sqlite3

WRITE_SECONDS = 60.0
ROOTS_DIRECTORY = "/var/lib/gdrtop/reliability"
KEPT_DAYS = 12 * 7  # on which something was counted
MOST_KEPT_JOBS = 1000
APPLICATION, VERSION = 0x67647274, 1  # "gdrt"; the version of the tables
MOST_PAGES, _PAGE_BYTES = 2048, 4096
_LOG_PAGES = 250  # of the write-ahead log, before it is written to the database
_BUSY_SECONDS = 0.1  # watch must not miss a sample for it
_PRUNE_SECONDS = 3600.0
_NEARLY_FULL = 0.75  # of the pages
_SAME_JOB_SECONDS = 900.0  # a job that was not seen for longer is another one with the same id
_MOST_NAME, _MOST_TEXT = 100, 120
_DAY_SECONDS = 86400
_DAYS = (
    "SELECT day FROM day_count UNION SELECT day FROM loss"
    f" UNION SELECT CAST(ended / {_DAY_SECONDS} AS INTEGER) FROM job"
)


class HistoryError(Exception):
    """The database cannot be used; the message is a sentence that names it and says what to do."""


class HistoryInUse(HistoryError):
    """Another `gdrtop watch` writes the same events and jobs: written twice, they would count twice."""


def history_path(hostname: str = "") -> str:
    """Return the database of a host, by default this one; "" without a home directory."""
    state = own_directory(STATE)
    directory = ROOTS_DIRECTORY if os.geteuid() == 0 else state and os.path.join(state, "reliability")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", hostname or os.uname().nodename)[:_MOST_NAME]
    return os.path.join(directory, f"{name or 'localhost'}.sqlite") if directory else ""


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what SQLite and the system say into HistoryError."""
    shown = shown_path(path)
    try:
        import sqlite3
    except ImportError:
        raise HistoryError("this Python has no sqlite3; install the package that has it") from None
    try:
        yield
    except sqlite3.OperationalError as error:
        raise HistoryError(_explanation(shown, str(error))) from None
    except (sqlite3.Error, OverflowError, sqlite3.Warning):
        raise HistoryError(f"{shown} is damaged; remove it") from None
    except (OSError, ValueError) as error:
        raise HistoryError(f"{shown} cannot be used: {why(error)}") from None


def _explanation(shown: str, error: str) -> str:
    if "locked" in error:
        return f"{shown} is locked by another program; end that program"
    if "full" in error:
        return f"{shown} cannot be written because the disk is full; free some space"
    if "readonly" in error:
        return f"{shown} cannot be written; make the file and its file system writable for this user"
    if "no such" in error:  # a table or a column
        return f"{shown} is damaged; remove it"
    return f"{shown} cannot be used: {printable(error, 200)}"


def require_own(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether the tables are there; HistoryError: it has those of another program or version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION and version == VERSION:
        return True
    shown = shown_path(path)
    if application == APPLICATION and version > VERSION:
        raise HistoryError(f"{shown} was written by a newer gdrtop; update gdrtop, or remove the file")
    if application or version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise HistoryError(f"{shown} is another program's database; move it elsewhere")
    return False


def require_file(path: str) -> None:
    """Raise OSError if there is no such file, if it is not a regular one, or if root must not trust it."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is not a regular file")
    if is_root():
        require_owner(status, "it")
        if others := why_not_as_root(os.path.dirname(path)):
            raise OSError(0, others)


class HistoryDatabase:
    """The database for writing; it is opened at the first write, and again if it was removed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._lock = -1  # descriptor of a locked file beside the database
        self._file: os.stat_result | None = None
        self._pruned_at = 0.0  # seconds since 1970

    def write(self, changes: Changes) -> None:
        """Add the changes, all or none; HistoryError: it cannot be written now."""
        try:
            with explained(self._path):
                connection = self._opened()
                if not 0 <= changes.at - self._pruned_at < _PRUNE_SECONDS:
                    self._prune(connection, changes.at, MOST_KEPT_JOBS)
                import sqlite3

                try:
                    _add(connection, changes)
                except sqlite3.OperationalError as error:
                    pages = connection.execute("PRAGMA page_count").fetchone()[0]
                    if "full" not in str(error) or pages < _NEARLY_FULL * MOST_PAGES:  # the disk is
                        raise
                    self._prune(connection, changes.at, MOST_KEPT_JOBS // 10)
                    _add(connection, changes)
        except HistoryError:
            self._disconnect()
            raise

    def close(self) -> None:
        """Close the database, which writes the log into it, and let another gdrtop write it."""
        self._disconnect()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._is_in_place():
            return self._connection
        self._disconnect()
        if not os.path.isabs(self._path):
            raise HistoryError(NO_HOME)
        directory = os.path.dirname(self._path)
        if others := why_not_as_root(directory):
            raise HistoryError(others)
        make_directory(directory, HistoryError)
        if self._lock < 0:
            self._lock = _locked(self._path)
        if os.path.lexists(self._path):
            require_file(self._path)
        else:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        import sqlite3

        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            has_tables = require_own(connection, self._path)
            for pragma in (
                f"page_size = {_PAGE_BYTES}",
                "journal_mode = WAL",
                "synchronous = NORMAL",
                "trusted_schema = OFF",
                "cache_size = -512",
                "temp_store = MEMORY",
                f"wal_autocheckpoint = {_LOG_PAGES}",
                f"journal_size_limit = {_LOG_PAGES * _PAGE_BYTES}",
                f"max_page_count = {MOST_PAGES}",
            ):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            tables, _, later = read_text(__package__, "tables.sql").partition("-- Later")
            connection.executescript(
                f"BEGIN IMMEDIATE;{'' if has_tables else tables}--{later}"
                f"PRAGMA application_id = {APPLICATION};PRAGMA user_version = {VERSION};COMMIT;"
            )
        except BaseException:
            connection.close()
            raise
        self._connection, self._file, self._pruned_at = connection, os.stat(self._path), 0.0
        return connection

    def _is_in_place(self) -> bool:
        try:
            return self._file is not None and os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            return False

    def _prune(self, connection: sqlite3.Connection, at: float, most_jobs: int) -> None:
        """Delete the oldest days, and all but the newest jobs."""
        with _transaction(connection):
            found = connection.execute(
                f"{_DAYS} ORDER BY 1 DESC LIMIT 1 OFFSET ?", (KEPT_DAYS - 1,)
            ).fetchone()
            first_day = found[0] if found else -1
            oldest = float(first_day * _DAY_SECONDS)
            connection.execute(
                "DELETE FROM job WHERE ended < ? OR id NOT IN (SELECT id FROM job ORDER BY id DESC LIMIT ?)",
                (oldest, most_jobs),
            )
            for table in ("part", "part_count"):
                connection.execute(f"DELETE FROM {table} WHERE job NOT IN (SELECT id FROM job)")
            for table in ("day_count", "loss"):
                connection.execute(f"DELETE FROM {table} WHERE day < ?", (first_day,))
            connection.execute(
                "DELETE FROM component WHERE id NOT IN (SELECT component FROM part)"
                " AND id NOT IN (SELECT component FROM day_count)"
            )
            connection.execute("UPDATE kept SET began = max(began, ?)", (oldest,))
        self._pruned_at = at


def _locked(path: str) -> int:
    """Return the descriptor of a database's lock; HistoryInUse: another gdrtop has it."""
    descriptor = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise HistoryInUse(f"another gdrtop watch writes {shown_path(path)}") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _add(connection: sqlite3.Connection, changes: Changes) -> None:
    with _transaction(connection):
        if not connection.execute(
            "UPDATE kept SET began = min(began, ?1), until = ?1", (changes.at,)
        ).rowcount:
            began = min([changes.at, *(job.began for job in changes.jobs)])
            connection.execute("INSERT INTO kept VALUES (?, ?)", (began, changes.at))
        ids = {}
        for identity in changes.components:
            key, name, bdf = (
                printable(text, _MOST_TEXT) for text in (identity.id, identity.name, identity.bdf)
            )
            connection.execute(
                "INSERT INTO component (key, name, is_gpu, bdf, seen) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET name = excluded.name, bdf = excluded.bdf,"
                " seen = excluded.seen",
                (key, name, identity.is_gpu, bdf, changes.at),
            )
            row = connection.execute("SELECT id FROM component WHERE key = ?", (key,)).fetchone()
            ids[identity.id] = row[0]
        for job in changes.jobs:
            _add_job(connection, job, ids)
        rows = (
            (day, ids[name], mark.value, count)
            for (day, name, mark), count in changes.days.items()
            if name in ids
        )
        _sum(connection, "day_count", rows)
        losses = ((day, printable(name, _MOST_TEXT), *row) for (day, name), row in changes.losses.items())
        _sum(connection, "loss", losses)


def _sum(connection: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]]) -> None:
    """Add figures to the rows of a table."""
    columns = [(name, place) for _, name, *_, place in connection.execute(f"PRAGMA table_info({table})")]
    keys = ", ".join(name for name, place in columns if place)  # in the primary key
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name, place in columns if not place)
    row = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {table} VALUES ({row}) ON CONFLICT ({keys}) DO UPDATE SET {added}", rows
    )


def _add_job(connection: sqlite3.Connection, job: JobChange, ids: dict[str, int]) -> None:
    key, name = printable(job.id, _MOST_TEXT), printable(job.name, _MOST_TEXT)
    row = connection.execute(
        "SELECT id FROM job WHERE key = ? AND ended >= ? ORDER BY ended DESC LIMIT 1",
        (key, job.since - _SAME_JOB_SECONDS),
    ).fetchone()
    if row is None:
        written = connection.execute(
            "INSERT INTO job (key, name, began, ended) VALUES (?, ?, ?, ?)", (key, name, job.began, job.until)
        )
        number = written.lastrowid
    else:
        number = row[0]
        connection.execute("UPDATE job SET name = ?, ended = ? WHERE id = ?", (name, job.until, number))
    parts = [(ids[name], part) for name, part in job.parts.items() if name in ids]  # others are gone since
    _sum(
        connection, "part", ((number, each, part.compared_seconds, part.slow_seconds) for each, part in parts)
    )
    counts = (
        (number, each, mark.value, count) for each, part in parts for mark, count in part.counts.items()
    )
    _sum(connection, "part_count", counts)


class HistoryRecorder:
    """Sums up samples and writes the sums; reports each reason why it cannot once, and never fails."""

    def __init__(self, path: str, tell: Callable[[float, str], object]) -> None:
        """`tell`: takes the time in seconds since 1970, and why nothing can be written."""
        self._tally = ComponentTally()
        self._database = HistoryDatabase(path)
        self._tell = tell
        self._told: set[str] = set()
        self._written_at: float | None = None  # by the sample's clock
        self._taken_at = 0.0  # seconds since 1970, of the newest sample

    def update(self, sample: LiveSample, node: Node, topology: Topology | None = None) -> None:
        """Add a sample, and write if a minute has passed."""
        self._taken_at = sample.taken_at
        if self._written_at is None:
            self._written_at = sample.at
        is_due = sample.at - self._written_at >= WRITE_SECONDS
        if is_due:
            self._written_at = sample.at
        try:
            self._tally.update(sample, node, topology)
            if is_due:
                self._write()
        except Exception as error:
            self._report(error)

    def close(self) -> None:
        """Write what is left."""
        try:
            self._write()
        except Exception as error:
            self._report(error)
        self._database.close()

    def _write(self) -> None:
        changes = self._tally.changes()
        if changes is not None:
            try:
                self._database.write(changes)
            except HistoryInUse:
                self._tally.forget()
                raise
            self._tally.forget()

    def _report(self, error: Exception) -> None:
        is_known = isinstance(error, HistoryError)
        text = str(error) if is_known else f"an error in gdrtop ({type(error).__name__})"
        if text not in self._told:
            self._told.add(text)
            self._tell(self._taken_at, text)
