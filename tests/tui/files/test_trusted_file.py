"""As root, no file that another user could have written is read; everyone else reads what they may."""

import os
import pwd
from pathlib import Path

import pytest

from probes.host import trusted_path
from probes.host.trusted_path import NotTrusted, require_path
from tui.files.read_file import read_trusted


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that nobody else can write to, on a machine where this user counts as root."""
    monkeypatch.setattr(trusted_path, "is_root", lambda: True)
    directory = tmp_path / "etc" / "gdrtop"
    directory.mkdir(parents=True)
    for path in (tmp_path, tmp_path / "etc", directory):
        os.chmod(path, 0o755)
    file = directory / "config.toml"
    file.write_text("interval = 2\n")
    os.chmod(file, 0o644)
    return tmp_path


def read(top: Path, name: str = "config.toml") -> bytes:
    return read_trusted(str(top / "etc" / "gdrtop" / name), 100, "a configuration", str(top))


def test_a_file_of_root_is_read(top: Path) -> None:
    assert read(top) == b"interval = 2\n"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_not_read(top: Path, mode: int) -> None:
    os.chmod(top / "etc/gdrtop/config.toml", mode)
    with pytest.raises(NotTrusted) as caught:
        read(top)
    assert f"other users can write to it (mode {mode:04o})" in str(caught.value)


@pytest.mark.parametrize("name", ["etc", "etc/gdrtop"])
def test_a_directory_that_others_can_write_spoils_its_files(top: Path, name: str) -> None:
    os.chmod(top / name, 0o777)
    with pytest.raises(NotTrusted, match=f"other users can write to {top / name}"):
        read(top)


def test_a_file_of_another_user_is_not_read(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        return os.stat_result((*status[:4], 4711, *status[5:]))

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(NotTrusted, match="it belongs to uid 4711, and gdrtop runs as root"):
        read(top)


def test_a_directory_of_another_user_spoils_its_files(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lstat

    def stat(path: str) -> os.stat_result:
        status = real(path)
        return os.stat_result((*status[:4], 4711, *status[5:]))

    monkeypatch.setattr(os, "lstat", stat)
    with pytest.raises(NotTrusted, match="belongs to uid 4711"):
        read(top)


def test_a_link_is_not_followed(top: Path) -> None:
    (top / "etc/gdrtop/link.toml").symlink_to("config.toml")
    with pytest.raises(NotTrusted, match="it is a symbolic link"):
        read(top, "link.toml")


def test_a_directory_behind_a_link_is_judged_by_where_it_is(top: Path) -> None:
    (top / "open").mkdir()
    os.chmod(top / "open", 0o777)
    file = top / "open" / "config.toml"
    file.write_text("")
    os.chmod(file, 0o644)
    (top / "etc" / "other").symlink_to("../open")
    with pytest.raises(NotTrusted, match="other users can write to"):
        read_trusted(str(top / "etc/other/config.toml"), 100, "a configuration", str(top))


def test_the_directory_of_a_link_counts_too(top: Path) -> None:
    """Who can write there could turn the link between the check and the use."""
    (top / "open").mkdir()
    os.chmod(top / "open", 0o777)
    (top / "open" / "here").symlink_to("../etc/gdrtop")
    with pytest.raises(NotTrusted, match=f"other users can write to {top / 'open'}"):
        read_trusted(str(top / "open/here/config.toml"), 100, "a configuration", str(top))
    os.chmod(top / "open", 0o755)
    assert require_path(str(top / "open/here/config.toml"), str(top)) == str(top / "etc/gdrtop/config.toml")


def test_links_in_a_circle_lead_nowhere(top: Path) -> None:
    (top / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        require_path(str(top / "circle" / "x"), str(top))


def test_what_gdrtop_starts_as_root_gets_no_home_of_another_user(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(top / "home"))
    monkeypatch.setenv("KUBECONFIG", f"/:{top}/home/config:relative")
    (top / "home").mkdir()
    os.chmod(top / "home", 0o777)
    found = trusted_path.trusted_environment()
    assert found["HOME"] == pwd.getpwuid(os.geteuid()).pw_dir
    assert found["KUBECONFIG"] == "/"
    monkeypatch.setattr(trusted_path, "is_root", lambda: False)
    assert trusted_path.trusted_environment() == dict(os.environ)


def test_a_pipe_does_not_block(top: Path) -> None:
    os.mkfifo(top / "etc/gdrtop/pipe.toml", 0o644)
    with pytest.raises(OSError, match="it is not a regular file"):
        read(top, "pipe.toml")


def test_a_large_file_is_not_read(top: Path) -> None:
    (top / "etc/gdrtop/config.toml").write_text("#" * 101)
    with pytest.raises(OSError, match="too large for a configuration"):
        read(top)


def test_other_users_read_what_they_may(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_path, "is_root", lambda: False)
    os.chmod(top / "etc/gdrtop/config.toml", 0o666)
    (top / "etc/gdrtop/link.toml").symlink_to("config.toml")
    assert read(top, "link.toml") == read(top)
