"""Results and baselines on disk: they come back, and nothing odd in the files stops anybody."""

import json
import os
import re
from pathlib import Path

import pytest

from probes.bandwidth.model.result import Ending
from probes.bandwidth.model.samples import HOST_MEMORY, About, Fact
from probes.base.origin import Origin, Source
from tests.support.sample_results import MORNING, failed, result
from tui.bandwidth.results_store import (
    DiskResultsStore,
    MemoryResultsStore,
    ResultsStore,
    StoreError,
    open_results_store,
    slug,
)

MACHINE = "Supermicro, 8 × H100"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskResultsStore:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return DiskResultsStore()


def file_of(tmp_path: Path) -> Path:
    return tmp_path / "gdrtop" / "results.jsonl"


def test_results_come_back_the_oldest_first(kept: DiskResultsStore, tmp_path: Path) -> None:
    for seconds in range(3):
        kept.add(result(180.0 + seconds, taken_at=MORNING + seconds))
    assert [result.gbps for result in DiskResultsStore().results()] == [180.0, 181.0, 182.0]
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
    assert kept.path == str(file_of(tmp_path))


def test_where_nothing_was_kept_there_is_nothing(kept: DiskResultsStore) -> None:
    assert kept.results() == ()
    assert kept.baseline(MACHINE) == ()


def test_lines_that_are_no_results_are_passed_over(kept: DiskResultsStore, tmp_path: Path) -> None:
    kept.add(result(180.0))
    with file_of(tmp_path).open("ab") as file:
        file.write(b'{"schema": 99}\n[]\nnot json\n\xff\xfe\n' + b"[" * 5000 + b"\n")
    kept.add(result(181.0))
    assert [result.gbps for result in kept.results()] == [180.0, 181.0]


def test_a_large_file_is_begun_anew_and_the_newest_stay(
    kept: DiskResultsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.files.append_file.FULL_BYTES", 4000)
    for seconds in range(12):
        kept.add(result(100.0 + seconds, taken_at=MORNING + seconds))
    figures = [result.gbps for result in kept.results()]
    assert figures[-1] == 111.0
    assert 2 < len(figures) < 12
    assert figures == sorted(figures)  # type: ignore[type-var]


def test_a_file_that_others_may_write_is_not_believed(kept: DiskResultsStore, tmp_path: Path) -> None:
    kept.add(result())
    assert kept.why_unread() == ""
    file_of(tmp_path).chmod(0o664)
    assert kept.results() == ()
    assert re.search(
        r"results\.jsonl cannot be read: other users can write to it \(mode 0664\)", kept.why_unread()
    )
    with pytest.raises(StoreError, match="other users can write"):
        kept.add(result())


def test_a_file_of_another_user_says_whose_it_is(
    kept: DiskResultsStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept.add(result())
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    of_another = DiskResultsStore(str(tmp_path / "gdrtop"))
    assert of_another.results() == ()
    told = of_another.why_unread()
    assert f"it belongs to uid {owner}, not to uid {owner + 1}" in told
    assert "other users can write" not in told


def test_where_there_is_no_file_nothing_is_wrong(kept: DiskResultsStore) -> None:
    assert kept.why_unread() == ""
    assert MemoryResultsStore().why_unread() == ""


def test_a_line_cut_off_by_a_full_disk_spoils_no_other(kept: DiskResultsStore, tmp_path: Path) -> None:
    kept.add(result(180.0))
    whole = file_of(tmp_path).read_bytes()
    file_of(tmp_path).write_bytes(whole + whole[: len(whole) // 2])
    kept.add(result(181.0))
    kept.add(result(182.0))
    assert [result.gbps for result in kept.results()] == [180.0, 181.0, 182.0]


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = DiskResultsStore(str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"results\.jsonl cannot be written"):
        kept.add(result())
    with pytest.raises(StoreError, match="could not be created"):
        kept.save_baseline((result(),))


def test_a_baseline_is_a_plain_file_for_other_nodes_too(kept: DiskResultsStore, tmp_path: Path) -> None:
    path = kept.save_baseline((result(195.0), failed("nvidia-peermem")))
    content = json.loads(Path(path).read_text("ascii"))
    assert content["machine"] == MACHINE
    assert content["results"][0]["gbps"] == 195.0
    assert Path(path).name == "supermicro-8-h100.json"
    there = tmp_path / "there" / "gdrtop" / "baselines"
    there.mkdir(parents=True)
    os.link(path, there / Path(path).name)
    copied = DiskResultsStore(str(there.parent)).baseline(MACHINE)
    assert [sample.gbps for sample in copied] == [195.0]


def test_a_later_baseline_replaces_the_same_tests_only(kept: DiskResultsStore) -> None:
    kept.save_baseline((result(195.0), result(190.0, "nvidia-peermem")))
    kept.save_baseline((result(197.0),))
    assert {sample.memory: sample.gbps for sample in kept.baseline(MACHINE)} == {
        "DMA-BUF": 197.0,
        "nvidia-peermem": 190.0,
    }


def test_a_baseline_of_another_type_is_none(kept: DiskResultsStore) -> None:
    kept.save_baseline((result(195.0),))
    assert kept.baseline("Another") == ()
    assert kept.baseline("Supermicro; 8 x H100") == ()


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"machine": "Supermicro, 8 × H100", "results": 7}', "[" * 9000]
)
def test_a_spoilt_baseline_is_none(kept: DiskResultsStore, content: str) -> None:
    path = Path(kept.save_baseline((result(195.0),)))
    path.write_text(content)
    assert kept.baseline(MACHINE) == ()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("[" * 9000, "cannot be read"),
        (json.dumps({"schema": 3, "machine": MACHINE, "results": []}), "has an unknown format"),
        (
            json.dumps({"schema": 2, "machine": "Supermicro; 8 x H100", "results": []}),
            "a different machine type",
        ),
        (json.dumps({"schema": 2, "machine": MACHINE, "results": [{"schema": 3}]}), "1 result in"),
    ],
)
def test_a_baseline_that_is_not_understood_is_never_overwritten(
    kept: DiskResultsStore, content: str, why: str
) -> None:
    path = Path(kept.save_baseline((result(195.0),)))
    path.write_text(content)
    with pytest.raises(StoreError, match=f"{why}.*Rename or remove it first"):
        kept.save_baseline((result(197.0),))
    assert path.read_text() == content
    assert list(path.parent.iterdir()) == [path]


EIGHT = "Supermicro SYS-821GE-TNHR, 8 × H100, 8 × 400 Gb/s InfiniBand"
SEVEN = "Supermicro SYS-821GE-TNHR, 7 × H100, 8 × 400 Gb/s InfiniBand"


@pytest.mark.parametrize("memory", [True, False])
def test_a_baseline_of_the_same_product_is_named_where_this_type_has_none(
    kept: DiskResultsStore, memory: bool
) -> None:
    some: ResultsStore = MemoryResultsStore() if memory else kept
    assert some.no_baseline(SEVEN) == ""
    some.save_baseline((result(machine=EIGHT),))
    hint = f"there is a baseline for {EIGHT}, but none for this machine type: {SEVEN}"
    assert some.no_baseline(SEVEN) == hint
    assert some.no_baseline(EIGHT) == ""
    assert some.no_baseline("Dell PowerEdge XE9680, 7 × H100") == ""
    assert some.no_baseline("Supermicro SYS-821GE-TNHR-2, 8 × H100") == ""


def test_a_baseline_that_cannot_be_read_is_not_taken_for_none(kept: DiskResultsStore) -> None:
    path = Path(kept.save_baseline((result(195.0),)))
    path.write_text("{")
    assert "cannot be read: it is not valid JSON" in kept.no_baseline(MACHINE)


def test_other_memory_than_was_asked_for_is_no_baseline(kept: DiskResultsStore) -> None:
    other = result(195.0, facts=(Fact(About.MEMORY, HOST_MEMORY, ""),))
    with pytest.raises(StoreError, match="no result can be saved"):
        kept.save_baseline((other,))


@pytest.mark.parametrize("memory", [True, False])
def test_what_was_not_measured_is_no_baseline(kept: DiskResultsStore, memory: bool) -> None:
    some: ResultsStore = MemoryResultsStore() if memory else kept
    for results in ((), (failed(),), (result(ending=Ending.CANCELED),)):
        with pytest.raises(StoreError, match="no result can be saved"):
            some.save_baseline(results)


def test_a_simulated_nodes_results_reach_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    kept = open_results_store(Origin(Source.SIMULATED, "hgx-h100"))
    kept.add(result())
    kept.save_baseline((result(),))
    assert len(kept.results()) == 1
    assert len(kept.baseline(MACHINE)) == 1
    assert list(tmp_path.iterdir()) == []
    assert isinstance(open_results_store(Origin(Source.LIVE)), DiskResultsStore)


def test_a_slug_is_a_files_name() -> None:
    assert slug("Supermicro SYS-821GE-TNHR, 8 × H100") == "supermicro-sys-821ge-tnhr-8-h100"
    assert slug("../../etc/passwd") == "etc-passwd"
    assert slug("×") == "unknown-type"
    assert len(slug("x" * 1000)) < 200


def test_root_writes_nothing_below_another_users_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "gdrtop").symlink_to(elsewhere)
    if os.geteuid() == 0:
        os.chown(home, 4711, 4711)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    kept = DiskResultsStore()
    with pytest.raises(StoreError, match="as root, gdrtop does not write there"):
        kept.add(result(180.0))
    with pytest.raises(StoreError, match="as root, gdrtop does not write there"):
        kept.save_baseline((result(180.0),))
    assert not list(elsewhere.iterdir())


def test_without_a_home_nothing_is_written_to_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # no HOME, no entry in /etc/passwd
    kept = DiskResultsStore()
    assert kept.results() == ()
    assert kept.baseline(MACHINE) == ()
    for save in (lambda: kept.add(result(180.0)), lambda: kept.save_baseline((result(180.0),))):
        with pytest.raises(StoreError, match="there is no home directory"):
            save()
    assert not list(tmp_path.iterdir())
