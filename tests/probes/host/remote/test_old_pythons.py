"""The collector under every older Python that is installed here, and its syntax and API by vermin."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from probes.host import trusted_path
from probes.host.machine.local import LocalHost
from probes.host.remote import collector
from probes.host.remote.remote_host import RemoteHost
from probes.host.remote.transport import plain_source
from tests.support.local_node import local_target

PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
pytestmark = pytest.mark.slow


@pytest.mark.skipif(not PYTHONS, reason="no other Python here")
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_the_collector_runs_with_it(tmp_path: Path, python: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "python3").symlink_to(python)
    host, own = RemoteHost(local_target(tmp_path)), LocalHost()
    try:
        assert host.read_bytes("/proc/version") == own.read_bytes("/proc/version")
        assert host.names("/sys/class/net") == own.names("/sys/class/net")
        assert host.run(("uname", "-r")) == own.run(("uname", "-r"))
        found = host._ask("program", 5.0, "import sys; print(*sys.version_info[:2])")
        assert found[1].split() == python.parts[-3].split(".")[:2]
    finally:
        host.close()


@pytest.mark.parametrize("module", [collector, trusted_path], ids=lambda module: module.__name__)
def test_its_source_needs_no_newer_python_than_3_6(tmp_path: Path, module: ModuleType) -> None:
    source = tmp_path / "program.py"
    source.write_text(plain_source(Path(str(module.__file__))))
    vermin = subprocess.run(
        [str(Path(sys.executable).with_name("vermin")), "-t=3.6-", "--no-tips", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert vermin.returncode == 0, vermin.stdout
