"""The database of the history: what is written is read back, and what is wrong with it is said."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.component_history import LAST_JOBS, MOST_JOBS, ComponentHistory, Loss, Mark
from probes.live.reliability import Changes, Identity, JobChange, PartChange
from tui.files.reliability import database
from tui.files.reliability.database import HistoryDatabase, HistoryError, history_path
from tui.files.reliability.reading import NOT_KEPT, read_history

NOW, DAY = 1_700_000_000.0, 86_400.0
NIC = Identity("51a0:1a7e:0000:0005/1", "mlx5_5", is_gpu=False, bdf="0000:9c:00.0")
GPU = Identity("GPU-51a01a7e-d000-0000-0000-000000000003", "GPU 3", is_gpu=True, bdf="0000:3b:00.0")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "reliability" / "gpu1.sqlite")


def a_job(number: int, until: float = NOW, since: float | None = None, slow: float = 0.0) -> JobChange:
    since = until - 100.0 if since is None else since
    parts = {NIC.id: PartChange(100.0, slow, {Mark.DOWN: 1}), GPU.id: PartChange()}
    return JobChange(f"slurm:{number}", f"train.py (Slurm job {number})", since, since, until, 100.0, parts)


def changes(
    *jobs: JobChange,
    at: float = NOW,
    downs: int = 0,
    nic: Identity = NIC,
    lost: dict[str, float] | None = None,
) -> Changes:
    days = {(int(at // DAY), nic.id, Mark.DOWN): downs} if downs else {}
    losses = {
        (int(at // DAY), name): (seconds, seconds, seconds, seconds, 0.5 * seconds)
        for name, seconds in (lost or {}).items()
    }
    return Changes(at, (nic, GPU), jobs, days, losses)


def written(path: str, *many: Changes) -> None:
    kept = HistoryDatabase(path)
    for each in many:
        kept.write(each)
    kept.close()


def history(answer: Maybe[ComponentHistory]) -> ComponentHistory:
    assert isinstance(answer, ComponentHistory)
    return answer


def test_what_is_written_is_read_back_with_the_newest_job_first(path: str) -> None:
    written(path, changes(a_job(1, NOW - 900), a_job(2), downs=3))
    found = history(read_history(path))
    assert (found.since, found.until) == (NOW - 1000, NOW)
    assert [job.name for job in found.jobs] == ["train.py (Slurm job 2)", "train.py (Slurm job 1)"]
    nic, gpu = found.components
    assert (nic.id, nic.name, nic.bdf, nic.counts) == (NIC.id, "mlx5_5", NIC.bdf, {"down": 3})
    assert [(part.job, part.compared_seconds, part.counts) for part in nic.parts] == [
        (0, 100.0, {"down": 1}),
        (1, 100.0, {"down": 1}),
    ]
    assert (gpu.name, gpu.is_gpu, gpu.counts) == ("GPU 3", True, {})


def test_a_job_goes_on_after_watch_was_restarted_and_a_later_one_of_its_id_is_another(path: str) -> None:
    written(path, changes(a_job(1, NOW, slow=50.0)))
    written(path, changes(a_job(1, NOW + 300, since=NOW + 200), at=NOW + 300))
    (job,) = history(read_history(path)).jobs
    assert (job.began, job.ended) == (NOW - 100, NOW + 300)
    (part,) = history(read_history(path)).components[0].parts
    assert (part.compared_seconds, part.slow_seconds, part.counts) == (200.0, 50.0, {"down": 2})
    written(path, changes(a_job(1, NOW + DAY), at=NOW + DAY))
    assert len(history(read_history(path)).jobs) == 2


def test_a_renamed_component_keeps_its_history(path: str) -> None:
    renamed = Identity(NIC.id, "rocep156s0", is_gpu=False, bdf=NIC.bdf)
    written(path, changes(downs=1), changes(downs=1, nic=renamed))
    (nic,) = [each for each in history(read_history(path)).components if not each.is_gpu]
    assert (nic.name, nic.counts) == ("rocep156s0", {"down": 2})


def test_the_oldest_days_and_their_components_are_deleted(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "KEPT_DAYS", 3)
    old = Identity("old", "mlx5_9", is_gpu=False, bdf="")
    written(path, changes(a_job(1), downs=1), changes(downs=1, nic=old))
    days = [NOW + number * DAY for number in range(1, 5)]
    written(path, *(changes(a_job(int(day), day), at=day) for day in days))
    found = history(read_history(path))
    assert [job.ended for job in found.jobs] == [*reversed(days)][:4]
    assert {each.name: each.counts for each in found.components} == {"mlx5_5": {}, "GPU 3": {}}
    assert int(found.since // DAY) == int(days[0] // DAY)


def test_gpu_time_is_added_up_by_finding_and_forgotten_with_its_day(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "KEPT_DAYS", 2)
    written(path, changes(lost={"acs-redirect-enabled": 60.0, "": 60.0}))
    written(path, changes(lost={"acs-redirect-enabled": 30.0}), changes(at=NOW + DAY, lost={"": 10.0}))
    found = {each.finding: each for each in history(read_history(path)).losses}
    assert found["acs-redirect-enabled"] == Loss("acs-redirect-enabled", 90.0, 90.0, 90.0, 90.0, 45.0)
    assert found[""].lost_seconds == 35.0
    written(path, changes(at=NOW + 2 * DAY, lost={"": 1.0}), changes(at=NOW + 2 * DAY + 4000))
    written(path, changes(at=NOW + 2 * DAY + 8000))
    assert [each.gpu_seconds for each in history(read_history(path)).losses] == [11.0]


def test_a_history_of_an_earlier_gdrtop_has_no_gpu_time_and_gets_some(path: str) -> None:
    written(path, changes(a_job(1)))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE loss")
    assert history(read_history(path)).losses == ()
    written(path, changes(lost={"acs-redirect-enabled": 60.0}))
    assert [each.gpu_seconds for each in history(read_history(path)).losses] == [60.0]


def test_a_clock_that_was_wrong_for_a_while_deletes_and_hides_nothing(path: str) -> None:
    wrong = NOW + 3 * 365 * DAY
    written(path, changes(a_job(1), downs=3), changes(a_job(2, wrong), at=wrong))
    written(path, changes(a_job(3, NOW + 600), at=NOW + 600))
    found = history(read_history(path))
    assert [job.name[-2] for job in found.jobs] == ["3", "2", "1"]
    assert found.components[0].counts == {"down": 3}
    assert (found.since, found.until) == (NOW - 100, NOW + 600)


def test_only_the_newest_jobs_stay(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MOST_KEPT_JOBS", 30)
    jobs = [a_job(number, NOW - 2000 + number) for number in range(40)]
    written(path, changes(*jobs), changes(at=NOW + DAY))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM job").fetchone() == (30,)
        assert connection.execute("SELECT count(*) FROM part").fetchone() == (60,)
    assert len(history(read_history(path)).jobs) == MOST_JOBS


def test_jobs_without_a_comparison_do_not_displace_those_with_one(path: str) -> None:
    compared = [a_job(number, NOW - 5000 + number, slow=50.0) for number in range(MOST_JOBS + 5)]
    others = [a_job(100 + number, NOW - 1000 + number) for number in range(MOST_JOBS)]
    for job in others:
        job.parts[NIC.id].compared_seconds = 10.0
    written(path, changes(*compared, *others))
    found = history(read_history(path))
    assert [job.name for job in found.jobs[:MOST_JOBS]] == [job.name for job in reversed(others)]
    assert [job.name for job in found.jobs[MOST_JOBS:]] == [job.name for job in reversed(compared[5:])]
    assert [(each.slow_jobs, each.compared_jobs) for each in found.components[:1]] == [(LAST_JOBS, LAST_JOBS)]


def test_a_database_that_is_full_loses_its_oldest_jobs(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MOST_PAGES", 24)
    kept = HistoryDatabase(path)
    for number in range(0, 600, 50):
        jobs = [a_job(each, NOW + each) for each in range(number, number + 50)]
        kept.write(changes(*jobs, at=NOW + number + 50))
    kept.close()
    assert Path(path).stat().st_size <= 24 * 4096
    assert history(read_history(path)).jobs[0].name == "train.py (Slurm job 599)"
    with sqlite3.connect(path) as connection:
        assert 100 <= connection.execute("SELECT count(*) FROM job").fetchone()[0] < 600


def test_a_killed_watch_loses_nothing_that_was_written(path: str) -> None:
    kept = HistoryDatabase(path)
    kept.write(changes(a_job(1)))
    # While it runs, and as a kill leaves it: the log is not written to the database yet.
    assert len(history(read_history(path)).jobs) == 1
    for end in ("", "-wal"):
        Path(f"{path}{end}").with_name(f"copy{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    copy = str(Path(path).with_name("copy"))
    written(copy, changes(a_job(2, NOW + 10), at=NOW + 10))
    assert len(history(read_history(copy)).jobs) == 2
    kept.close()


def test_a_reader_writes_nothing_beside_the_database(path: str) -> None:
    written(path, changes(a_job(1)))
    directory = Path(path).parent
    assert sorted(each.name for each in directory.iterdir()) == ["gpu1.sqlite", "gpu1.sqlite.lock"]
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    before = Path(path).stat()
    read_history(path)
    assert sorted(each.name for each in directory.iterdir()) == ["gpu1.sqlite", "gpu1.sqlite.lock"]
    assert Path(path).stat().st_mtime_ns == before.st_mtime_ns


def test_no_database_is_no_history(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.files.reliability.reading.ROOTS_DIRECTORY", "/nonexistent/reliability")
    assert read_history(path) == read_history("") == NOT_KEPT
    os.mkdir(os.path.dirname(path))
    Path(path).touch()
    assert read_history(path) == NOT_KEPT


def test_a_user_may_need_root_to_read_the_history_of_the_service(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.files.reliability.reading.ROOTS_DIRECTORY", str(tmp_path / "reliability"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    answer = read_history(path)
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NEEDS_ROOT


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE urls (url)")


def _newer(path: Path) -> None:
    written(str(path), changes(a_job(1)))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")


def _without_a_table(path: Path) -> None:
    written(str(path), changes(a_job(1)))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE part")


def _damaged(path: Path) -> None:
    written(str(path), changes(*(a_job(number) for number in range(300))))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_foreign, "is another program's database; move it elsewhere"),
        (_newer, "was written by a newer gdrtop; update gdrtop, or remove the file"),
        (_without_a_table, "is damaged; remove it"),
        (_damaged, "is damaged; remove it"),
        (lambda path: path.write_bytes(b"no database" * 1000), "is damaged; remove it"),
        (lambda path: path.mkdir(), "cannot be used: it is not a regular file"),
        (lambda path: os.mkfifo(path), "cannot be used: it is not a regular file"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(path: str, spoil: Callable[[Path], object], told: str) -> None:
    os.mkdir(os.path.dirname(path), 0o700)
    spoil(Path(path))
    with pytest.raises(HistoryError) as error:
        written(path, changes(a_job(2)))
    assert told in str(error.value)
    assert path in str(error.value)
    answer = read_history(path)
    assert isinstance(answer, Unknown)
    assert told in answer.detail


def test_a_locked_database_is_left_alone_and_written_later(path: str) -> None:
    kept = HistoryDatabase(path)
    kept.write(changes(a_job(1)))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(HistoryError, match="is locked by another program"):
        kept.write(changes(a_job(2)))
    other.execute("ROLLBACK")
    other.close()
    kept.write(changes(a_job(2)))
    kept.close()
    assert len(history(read_history(path)).jobs) == 2


def test_a_removed_database_begins_again(path: str) -> None:
    kept = HistoryDatabase(path)
    kept.write(changes(a_job(1)))
    for file in Path(path).parent.iterdir():
        file.unlink()
    kept.write(changes(a_job(2)))
    kept.close()
    assert [job.name for job in history(read_history(path)).jobs] == ["train.py (Slurm job 2)"]


def test_values_of_other_types_are_damage(path: str) -> None:
    written(path, changes(a_job(1)))
    for change in ("name = x'00'", "name = 'train', ended = 9e999", "ended = 'never'"):
        with sqlite3.connect(path) as connection:
            connection.execute(f"UPDATE job SET {change}")
        answer = read_history(path)
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.MALFORMED


def test_a_link_is_not_followed(path: str) -> None:
    written(path, changes(a_job(1)))
    os.rename(path, f"{path}.moved")
    os.symlink(f"{path}.moved", path)
    with pytest.raises(HistoryError, match="it is not a regular file"):
        written(path, changes(a_job(2)))


def test_root_trusts_no_file_of_another_user(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, changes(a_job(1)))
    monkeypatch.setattr(database, "is_root", lambda: True)
    os.chmod(path, 0o666)
    answer = read_history(path)
    assert isinstance(answer, Unknown)
    assert "other users can write to it" in answer.detail
    with pytest.raises(HistoryError, match="other users can write to it"):
        written(path, changes(a_job(2)))


def test_it_is_one_for_each_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/home/alice/state")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert history_path("gpu1/../x") == "/home/alice/state/gdrtop/reliability/gpu1_.._x.sqlite"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert history_path("gpu1") == "/var/lib/gdrtop/reliability/gpu1.sqlite"
