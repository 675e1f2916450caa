"""Expected figures of machine types in `gdrtop bench`: verdict, exit status, JSON, a site's file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.documents import valid
from tests.tui.commands.bench.scene import Scene
from tui.settings.current import use
from tui.settings.load import load

_OURS = '[[pair]]\nname = "our H100 nodes"\nproduct = "supermicro*"\nat_least_gbps = {}\n'


def table(tmp_path: Path, gbps: int) -> str:
    path = tmp_path / "expected.toml"
    path.write_text(_OURS.format(gbps))
    return str(path)


def test_a_result_as_expected_is_said_so(tmp_path: Path) -> None:
    status, out = Scene().run("--seconds", "3", "--expected", table(tmp_path, 350))
    assert status == 0
    assert "1 of 1 test measured, as expected for our H100 nodes" in out


def test_a_result_below_what_is_expected_fails(tmp_path: Path) -> None:
    status, out = Scene().run("--seconds", "3", "--expected", table(tmp_path, 399))
    assert status == 1
    assert "▲" in out
    assert "lower than expected: GPU0 → mlx5_0 · DMA-BUF" in out
    assert "at least 399 Gb/s is expected for our H100 nodes" in " ".join(out.split())


def test_min_gbps_is_asked_for_and_counts_instead(tmp_path: Path) -> None:
    arguments = ("--seconds", "3", "--expected", table(tmp_path, 399), "--min-gbps", "300")
    assert Scene().run(*arguments)[0] == 0


def test_json_has_what_is_expected(tmp_path: Path) -> None:
    status, out = Scene().run("--seconds", "3", "--json", "--expected", table(tmp_path, 399))
    content = valid("bench", out)
    (result,) = content["results"]
    assert (result["expected_gbps"], result["expected_machine"]) == (399.0, "our H100 nodes")
    assert content["exit_status"] == status == 1


def test_a_plan_shows_what_is_expected_and_by_whom() -> None:
    status, out = Scene("azure-nd-h100").run("--dry-run")
    assert status == 0
    assert "at least 380 Gb/s is expected for Azure ND H100 v5 (https://" in " ".join(out.split())


def test_a_given_table_that_cannot_be_used_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "expected.toml"
    path.write_text("[[pair]]\nport = 1\n")
    assert Scene().run("--expected", str(path)) == (3, "")
    assert "unknown field port" in capsys.readouterr().err


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Configure the site's table."""

    def configure(path: str) -> None:
        monkeypatch.setenv("GDRTOP_BANDWIDTH_EXPECTED", path)
        use(load())

    yield configure
    use(None)


def test_a_sites_table_is_used_on_a_real_node_only(tmp_path: Path, configured: Callable[[str], None]) -> None:
    configured(table(tmp_path, 399))
    assert "our H100 nodes" not in Scene().run("--dry-run")[1]
    assert "our H100 nodes" in Scene(live=True).run("--dry-run")[1]


def test_a_sites_bad_table_is_reported_and_not_used(
    tmp_path: Path, configured: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "expected.toml"
    path.write_text("nonsense")
    configured(str(path))
    assert Scene(live=True).run("--dry-run")[0] == 0
    assert "gdrtop uses its own figures" in capsys.readouterr().err
