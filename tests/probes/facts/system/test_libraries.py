"""Which library a program would load here."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system.tools import InstalledLibrary, probe_libraries, version_of
from probes.host.machine.local import LocalHost
from tests.support.trees import link, write

DEBIAN = "/usr/lib/x86_64-linux-gnu"


def test_the_target_of_the_link_shows_the_version(tmp_path: Path) -> None:
    write(tmp_path, f"{DEBIAN}/libnvidia-ml.so.570.124.06", "")
    link(tmp_path, f"{DEBIAN}/libnvidia-ml.so.1", "libnvidia-ml.so.570.124.06")
    found = probe_libraries(LocalHost(str(tmp_path))).found
    expected = InstalledLibrary(f"{DEBIAN}/libnvidia-ml.so.570.124.06", "570.124.06")
    assert found["libnvidia-ml.so.1"] == (expected,)
    assert found["libnccl.so.2"] == ()


def test_the_same_file_by_two_paths_is_listed_once(tmp_path: Path) -> None:
    write(tmp_path, f"{DEBIAN}/libnccl.so.2.21.5", "")
    link(tmp_path, f"{DEBIAN}/libnccl.so.2", "libnccl.so.2.21.5")
    link(tmp_path, "/lib", "usr/lib")
    assert len(probe_libraries(LocalHost(str(tmp_path))).found["libnccl.so.2"]) == 1


def test_two_versions_side_by_side_are_both_reported(tmp_path: Path) -> None:
    for directory, version in ((DEBIAN, "2.21.5"), ("/usr/local/lib", "2.18.3")):
        write(tmp_path, f"{directory}/libnccl.so.{version}", "")
        link(tmp_path, f"{directory}/libnccl.so.2", f"libnccl.so.{version}")
    versions = [
        library.version for library in probe_libraries(LocalHost(str(tmp_path))).found["libnccl.so.2"]
    ]
    assert versions == ["2.21.5", "2.18.3"]


def test_the_number_of_the_interface_is_no_version(tmp_path: Path) -> None:
    write(tmp_path, f"{DEBIAN}/libnccl.so.2", "")
    version = probe_libraries(LocalHost(str(tmp_path))).found["libnccl.so.2"][0].version
    assert isinstance(version, Unknown)
    assert version.reason is Reason.NOT_THERE


@given(st.text())
def test_no_name_stops_it(text: str) -> None:
    version_of(text)
    version_of(f"x.so.{text}")
