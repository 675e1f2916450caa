"""What make dist builds is the same twice, and is installed and started without a network."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import TOOLS, build

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("packages"),
    pytest.mark.skipif(
        not (TOOLS / "nfpm").exists(), reason="the tools are not installed; run make dist once"
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("first")
    build(out)
    return out


def only(built: Path, pattern: str) -> Path:
    (path,) = built.glob(pattern)
    return path


def started(*argv: str | Path) -> str:
    """What a program prints, where it has no network if this user may take that away."""
    apart = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PIP_NO_INDEX": "1"}
    done = subprocess.run([*apart, *argv], capture_output=True, text=True, env=environment, cwd="/")
    assert done.stderr == ""
    return done.stdout


def check(*program: str | Path) -> None:
    """It starts, and judges a simulated node."""
    assert started(*program, "--version").startswith("gdrtop 0.")
    assert "ACTIVE via peermem" in started(*program, "--demo", "hgx-h100", "check", "--one-line")


def test_two_builds_are_equal(built: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    build(again)
    sums = (built / "SHA256SUMS").read_text()
    assert (again / "SHA256SUMS").read_text() == sums
    for line in sums.splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((built / name).read_bytes()).hexdigest() == digest
    assert {line.split("  ")[1] for line in sums.splitlines()} == {
        path.name for path in built.iterdir() if path.name != "SHA256SUMS"
    }


def test_the_zipapp_starts(built: Path, tmp_path: Path) -> None:
    program = only(built, "*.pyz")
    environment = {"PATH": os.environ["PATH"], "SHIV_ROOT": str(tmp_path)}
    for argv in (["--version"], ["--demo", "hgx-h100", "check", "--one-line"]):
        done = subprocess.run(
            [sys.executable, program, *argv], capture_output=True, text=True, env=environment
        )
        assert done.stderr == ""
        assert done.stdout


def test_the_wheelhouse_is_installed_without_an_index(built: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(only(built, "*wheelhouse*.tar.gz"), tmp_path)
    (house,) = tmp_path.iterdir()
    for package, versions in (("pyyaml", 4), ("psutil", 1)):
        assert len([path for path in house.iterdir() if path.name.lower().startswith(package)]) >= versions
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    started(python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", house, "gdrtop")
    check(environment / "bin" / "gdrtop")
    assert (environment / "share" / "man" / "man1" / "gdrtop.1").is_file()


def test_the_deb_is_installed_started_and_removed(built: Path, tmp_path: Path) -> None:
    if not shutil.which("dpkg"):
        pytest.skip("no dpkg here")
    root = tmp_path / "root"
    for name in ("info", "updates"):
        (root / "var/lib/dpkg" / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = [
        *("dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless", "--force-not-root"),
        *("--log=/dev/null", "--no-triggers"),
    ]
    subprocess.run([*dpkg, "-i", only(built, "*.deb")], check=True, capture_output=True)
    check(root / "usr/bin/gdrtop")
    assert list((root / "usr/lib/gdrtop/tui").glob("__pycache__/*.pyc"))
    assert_shared(root, "usr/share/zsh/vendor-completions/_gdrtop")
    subprocess.run([*dpkg, "-r", "gdrtop"], check=True, capture_output=True)
    assert not (root / "usr/lib/gdrtop").exists()


def test_the_rpm_holds_the_same_and_starts(built: Path, tmp_path: Path) -> None:
    program = (
        "import sys, rpm_rs; package = rpm_rs.Package.open(sys.argv[1]); package.extract(sys.argv[2]);"
        "print(package.metadata.name, [each.name for each in package.metadata.requires()])"
    )
    out = tmp_path / "root"
    told = started(TOOLS / "python", "-c", program, only(built, "*.rpm"), out)
    assert told.startswith("gdrtop ")
    assert "python3" in told
    check("sh", out / "usr/bin/gdrtop")
    assert_shared(out, "usr/share/zsh/site-functions/_gdrtop")


def assert_shared(root: Path, zsh: str) -> None:
    for path in (
        "usr/share/man/man1/gdrtop.1.gz",
        "usr/share/bash-completion/completions/gdrtop",
        "usr/share/fish/vendor_completions.d/gdrtop.fish",
        zsh,
    ):
        assert (root / path).is_file(), path


def test_the_sbom_lists_what_is_delivered_and_nothing_else(built: Path) -> None:
    document = json.loads(only(built, "*.cdx.json").read_text())
    names = {each["name"].lower() for each in document["components"]}
    assert {"textual", "psutil", "networkx", "nvidia-ml-py", "clustershell"} <= names
    assert not {"pip", "pytest", "shiv", "hatchling"} & names
    assert document["metadata"]["component"]["name"] == "gdrtop"
    assert str(ROOT) not in json.dumps(document)


def test_nothing_names_the_machine_that_built_it(built: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(only(built, "*.whl"), tmp_path, "zip")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert str(ROOT).encode() not in path.read_bytes(), path


@pytest.mark.skipif(not shutil.which("podman"), reason="there is no container builder")
def test_the_container_starts(built: Path, tmp_path: Path) -> None:
    if subprocess.run(["podman", "pull", "python:3.12-slim"], capture_output=True).returncode:
        pytest.skip("the base image cannot be had here")
    shutil.copytree(built, tmp_path / "dist")
    containerfile = ROOT / ".ci" / "Containerfile"
    subprocess.run(
        ["podman", "build", "-f", containerfile, "-t", "gdrtop-test", "."], cwd=tmp_path, check=True
    )
    run = ["podman", "run", "--rm", "gdrtop-test", "--version"]
    assert subprocess.run(run, capture_output=True, text=True).stdout.startswith("gdrtop 0.")
