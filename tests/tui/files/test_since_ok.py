import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import Judgment, judge
from probes.fleet.compare import Changes
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of
from tui.files.since_ok import MOST_BYTES, SinceOk, last_ok_directory, since_ok, summary_in

GOOD, BAD = "hgx-h100", "hgx-h100+nvidia-not-loaded"


def live(label: str, at: float | None = None) -> tuple[Examination, Judgment]:
    """A simulated node as if it were this machine, and its judgment."""
    found = examination_of(label)
    node = replace(found.node, origin=Origin(Source.LIVE))
    examination = replace(found, node=node, taken_at=found.taken_at if at is None else at)
    return examination, judge(examination)


def checked(label: str, at: float | None = None, read_only: bool = False) -> SinceOk:
    return since_ok(*live(label, at), read_only)


def the_file(saved: Path) -> Path:
    (file,) = saved.iterdir()
    return file


def test_a_node_that_has_stopped_working_shows_what_has_changed(saved: Path) -> None:
    assert checked(GOOD, 1_000.0) is None
    since = checked(BAD, 1_000.0 + 2 * 86_400)
    assert isinstance(since, Changes)
    assert since.before.taken_at == 1_000.0
    assert since.now.name == since.before.name
    (driver,) = (change for change in since.changes if change.fact.id == "driver")
    assert driver.now == "none"
    assert since.changes[0] == driver


def test_the_file_is_for_its_owner_only_and_not_written_again_for_equal_facts(saved: Path) -> None:
    checked(GOOD, 1_000.0)
    file = the_file(saved)
    before = file.stat()
    assert before.st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    checked(GOOD, 5_000.0)
    after = file.stat()
    assert (after.st_ino, after.st_mtime) == (before.st_ino, 5_000.0)
    since = checked(BAD, 6_000.0)
    assert isinstance(since, Changes)
    assert since.before.taken_at == 5_000.0  # the last check at which it worked, and not the first


def test_other_facts_replace_the_file(saved: Path) -> None:
    checked(GOOD)
    examination, judgment = live(GOOD)
    platform = examination.node.platform
    newer = replace(platform, bios="2.4b")  # type: ignore[type-var]
    since_ok(replace(examination, node=replace(examination.node, platform=newer)), judgment)
    assert the_file(saved).read_text().count("2.4b") == 1
    since = checked(BAD)
    assert isinstance(since, Changes)
    assert ("bios", "2.4b") in [(change.fact.id, change.before) for change in since.changes]


def test_nothing_is_saved_of_other_machines_of_single_checks_or_with_read_only(saved: Path) -> None:
    found = examination_of(GOOD)
    since_ok(found, judge(found))  # simulated
    checked(GOOD, read_only=True)
    examination, _ = live(GOOD)
    since_ok(examination, judge(examination, only=("nvidia-not-loaded",)))
    assert checked(BAD) is None
    assert not saved.exists()


def test_a_read_only_home_is_no_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.parent.write_text("a file where the directory should be")
    assert checked(GOOD) is None
    assert checked(BAD) is None
    monkeypatch.setattr("tui.files.since_ok.last_ok_directory", lambda: "")
    assert checked(GOOD) is None
    assert checked(BAD) is None


def test_a_file_that_cannot_be_touched_still_counts(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked(GOOD, 1_000.0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert checked(GOOD, 2_000.0) is None
    assert isinstance(checked(BAD), Changes)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "no JSON": lambda file: file.write_bytes(b"\xff\x00{"),
    "deep": lambda file: file.write_bytes(b"[" * 100_000),
    "another document": lambda file: file.write_text('{"name": 7, "traits": [1]}'),
    "large": lambda file: file.write_bytes(b" " * (MOST_BYTES + 1)),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named_and_replaced_when_the_node_works_again(
    damage: Callable[[Path], object], saved: Path
) -> None:
    checked(GOOD)
    file = the_file(saved)
    damage(file)
    since = checked(BAD)
    assert isinstance(since, Unknown)
    assert since.reason in (Reason.MALFORMED, Reason.IO_ERROR)
    assert since.detail.startswith(f"{file} cannot be read: ")
    checked(GOOD)
    assert isinstance(checked(BAD), Changes)


@given(content=st.binary(max_size=300))
def test_no_content_crashes_it(content: bytes) -> None:
    assert summary_in(content) is None


def test_a_file_of_a_node_that_did_not_work_is_damaged(saved: Path) -> None:
    checked(GOOD)
    content = the_file(saved).read_bytes()
    assert summary_in(content) is not None
    assert summary_in(content.replace(b'"ACTIVE"', b'"BROKEN"')) is None


def test_each_node_of_a_shared_home_has_its_own_file(saved: Path) -> None:
    names = ("gpu1", "gpu2", "../../etc/passwd", "a/b", "x" * 300, ".")
    examination, judgment = live(GOOD)
    for name in names:
        platform = replace(examination.node.platform, hostname=name)  # type: ignore[type-var]
        since_ok(replace(examination, node=replace(examination.node, platform=platform)), judgment)
    assert len(list(saved.iterdir())) == len(names)
    assert all(file.suffix == ".json" for file in saved.iterdir())


def test_a_user_has_the_files_in_the_state_directory_and_root_in_one_that_survives_a_reboot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/home/alice/state")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert last_ok_directory() == "/home/alice/state/gdrtop/last-ok"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert last_ok_directory() == "/var/lib/gdrtop/last-ok"
