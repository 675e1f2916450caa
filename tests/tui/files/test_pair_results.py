"""Results of an interrupted run are found again; a complete, old or damaged one is not."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.fleet.attribution import PairEnd, PairMemory, PairResult
from probes.fleet.pairs import PairSettings
from tui.files import NotWritten
from tui.files.pair_results import PairResultsFile

RESULT = PairResult(PairEnd("gpu1", "mlx5_0"), PairEnd("gpu2", "mlx5_1"), 3, PairMemory.GPU, 381.5, 392.0)
SETTINGS = PairSettings()


def file_of(folder: Path, settings: PairSettings = SETTINGS) -> PairResultsFile:
    return PairResultsFile(["gpu1", "gpu2"], settings, str(folder))


def test_results_are_found_again_until_the_run_is_complete(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    assert file.unfinished() == ()
    failed = replace(RESULT, rail=4, gbps=Unknown(Reason.IO_ERROR))
    file.add([RESULT, replace(RESULT, rail=5, limit_gbps=None), failed])
    assert file_of(tmp_path).unfinished() == (RESULT, replace(RESULT, rail=5, limit_gbps=None))
    assert Path(file.path).stat().st_mode & 0o777 == 0o600
    file.complete()
    assert file.unfinished() == ()
    file.add([RESULT])
    assert file.unfinished() == (RESULT,)


def test_other_nodes_and_other_settings_have_another_file(tmp_path: Path) -> None:
    paths = {
        file_of(tmp_path).path,
        file_of(tmp_path, PairSettings(duration_s=10)).path,
        PairResultsFile(["gpu1", "gpu3"], SETTINGS, str(tmp_path)).path,
    }
    assert len(paths) == 3
    assert PairResultsFile(["gpu2", "gpu1"], SETTINGS, str(tmp_path)).path in paths


def test_old_results_say_little_about_now(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    file.add([RESULT], now=1000.0)
    assert file.unfinished(now=1000.0 + 11 * 3600) == (RESULT,)
    assert file.unfinished(now=1000.0 + 13 * 3600) == ()


def test_complete_runs_are_history(tmp_path: Path) -> None:
    file, faster = file_of(tmp_path), replace(RESULT, gbps=390.0)
    file.add([RESULT])
    assert file.earlier() == ()
    file.complete()
    file.add([faster], now=1000.0)
    file.complete()
    file.add([RESULT])
    assert file.earlier() == ((RESULT,), (faster,))
    assert file_of(tmp_path, PairSettings(is_bidirectional=True)).earlier() == ()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = PairResultsFile(["gpu1"], SETTINGS, str(tmp_path / "file"))
    with pytest.raises(NotWritten, match="cannot be written"):
        file.add([RESULT])


@pytest.mark.slow
@given(st.binary(max_size=400))
def test_a_damaged_file_raises_no_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = file_of(tmp_path_factory.mktemp("results"))
    line = (
        b'{"format": "gdrtop/fleet-bench-results/1", "at": 1, "server": "a", "client": "b", "memory": "gpu",'
    )
    for damaged in (content, line + b'"rails": [' + content + b"]}", line + b'"rails": [[1, 2, 3, "x", 5]]}'):
        Path(file.path).write_bytes(damaged)
        Path(file.path).chmod(0o600)
        assert all(isinstance(result, PairResult) for result in file.unfinished(now=2.0))
