"""What make dist builds is the same twice, and starts without a network with every Python."""

import hashlib
import json
import os
import platform
import pty
import re
import resource
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.packages import ARCHITECTURES, PYTHONS, SITE, TOOLS, build
from tests.support.terminals import Terminal, on_terminal

ROOT = Path(__file__).parents[1]
HERE = platform.machine()
COMMANDS = {
    ("check", "--demo", "hgx-h100", "--one-line"): "ACTIVE via peermem",
    ("setup", "--demo", "hgx-h100+nvidia-not-loaded"): "Ubuntu 22.04",
    ("config",): "interval",
}
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


@cache
def python(version: str) -> Path:
    """An interpreter of this version on the search path, of pyenv or of uv; skip without one."""
    folders = [*map(Path, os.environ["PATH"].split(os.pathsep)), Path("/usr/bin"), Path("/usr/local/bin")]
    for installed in (".pyenv/versions", ".local/share/uv/python"):
        folders += sorted(Path.home().glob(f"{installed}/*{version}*/bin"))
    for program in (folder / f"python{version}" for folder in folders):
        told = subprocess.run([program, "-V"], capture_output=True, text=True) if program.is_file() else None
        if told is not None and told.stdout.startswith(f"Python {version}."):
            return program
    pytest.skip(f"there is no Python {version} here")


@pytest.fixture(scope="module")
def installed(
    built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], list[str | Path]]:
    """What starts a package with a Python, as a command line."""
    root = tmp_path_factory.mktemp("installed")
    read_rpm = "import sys, rpm_rs; rpm_rs.Package.open(sys.argv[1]).extract(sys.argv[2])"

    @cache
    def install(package: str, version: str) -> list[str | Path]:
        interpreter = python(version)
        out = root / f"{package}-{version}"
        if package == "pyz":
            home = [f"SHIV_ROOT={root / 'unpacked'}"]  # all Pythons share it
            return ["env", *home, interpreter, only(built, f"*-{HERE}.pyz")]
        if package == "wheelhouse":
            shutil.unpack_archive(only(built, f"*wheelhouse-{HERE}.tar.gz"), out)
            house = only(out, "*wheelhouse*")
            started(interpreter, "-m", "venv", "--without-pip", out / "venv")
            pip = [interpreter, only(house, "pip-*.whl") / "pip", "--python", out / "venv/bin/python"]
            started(*pip, "install", "--quiet", "--no-index", "--find-links", house, "gdrtop")
            return [out / "venv/bin/gdrtop"]
        if package == "deb":
            if not shutil.which("dpkg-deb"):
                pytest.skip("no dpkg here")
            started("dpkg-deb", "-x", only(built, f"*_{ARCHITECTURES[HERE]}.deb"), out)
        else:
            started(TOOLS / "python", "-c", read_rpm, only(built, f"*.{HERE}.rpm"), out)
        (out / "first").mkdir()
        (out / "first/python3").symlink_to(interpreter)
        return ["env", f"PATH={out / 'first'}:/usr/bin:/bin", "sh", out / "usr/bin/gdrtop"]

    return install


def only(built: Path, pattern: str) -> Path:
    (path,) = built.glob(pattern)
    return path


def started(*argv: str | Path, **variables: str) -> str:
    """What a program prints, where it has no network if this user may take that away."""
    apart = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PIP_NO_INDEX": "1", **variables}
    done = subprocess.run([*apart, *argv], capture_output=True, text=True, env=environment, cwd="/")
    assert done.stderr == ""
    return done.stdout


def refused(*argv: str | Path, **variables: str) -> str:
    """The one sentence of a program that cannot start."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd="/")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("gdrtop")
    assert done.stderr.count("\n") == 1
    return done.stderr


def paint(*argv: str | Path) -> None:
    """It draws the dashboard of a simulated node, and q ends it."""
    master, slave = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*argv, "--demo", "hgx-h100"], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    shown, deadline = b"", time.monotonic() + 120
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, shown[-2000:]
            if select.select([master], [], [], 0.2)[0]:
                try:
                    shown += os.read(master, 1 << 16)
                except OSError:  # the terminal's other end is closed
                    break
            elif b"SIMULATED" in shown:
                os.write(master, b"q")
        assert process.wait(60) == 0, shown[-2000:]
        assert b"SIMULATED" in shown
    finally:
        process.kill()
        os.close(master)


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


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("package", ["deb", "rpm", "pyz", "wheelhouse"])
def test_every_package_runs_with_every_python(
    installed: Callable[[str, str], list[str | Path]], package: str, version: str
) -> None:
    program = installed(package, version)
    for arguments, shown in COMMANDS.items():
        assert shown in started(*program, *arguments)
    paint(*program)


@pytest.mark.parametrize("package", ["deb", "rpm", "pyz"])
def test_folders_named_like_gdrtops_own_change_nothing(
    installed: Callable[[str, str], list[str | Path]], package: str, tmp_path: Path
) -> None:
    for name in ("tui", "widgets", "probes", "textual", "yaml"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(f'{__name__} of a neighbor')")
    program = installed(package, f"3.{sys.version_info[1]}")
    if package == "pyz":  # so that it also unpacks with the neighbors
        program = ["env", f"SHIV_ROOT={tmp_path / 'unpacked'}", *program[2:]]
    shown = started(*program, "--demo", "hgx-h100", "check", "--one-line", PYTHONPATH=str(tmp_path))
    assert "ACTIVE via peermem" in shown


@pytest.mark.parametrize("package", ["deb", "rpm", "pyz"])
def test_what_cannot_be_imported_is_no_warning(
    installed: Callable[[str, str], list[str | Path]], package: str, tmp_path: Path
) -> None:
    program = installed(package, f"3.{sys.version_info[1]}")
    if package == "pyz":
        program = ["env", f"SHIV_ROOT={tmp_path}", *program[2:]]
        started(*program, "--version")
        broken = only(tmp_path, "*/tui/cli.py")
    else:
        root = program[-1].parents[2]  # type: ignore[union-attr]
        shutil.copytree(root, tmp_path / "root", symlinks=True)
        program = [*program[:-1], tmp_path / "root/usr/bin/gdrtop"]
        broken = tmp_path / "root/usr/lib/gdrtop/tui/cli.py"
    broken.write_text("import nothing_there")
    assert "No module named 'nothing_there'" in refused(*program, "check")


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9"])
def test_an_older_python_is_refused(built: Path, version: str) -> None:
    assert f"is {version}." in refused(python(version), only(built, f"*-{HERE}.pyz"), "check")


def test_another_architecture_is_refused(built: Path) -> None:
    (other,) = set(ARCHITECTURES) - {HERE}
    told = refused(sys.executable, only(built, f"*-{other}.pyz"), "check")
    assert f"is for {other}" in told
    assert HERE in told


def test_the_zipapp_finds_a_directory_or_names_the_variable(built: Path, tmp_path: Path) -> None:
    program = [sys.executable, only(built, f"*-{HERE}.pyz"), "--version"]
    assert "SHIV_ROOT" in refused(*program, SHIV_ROOT="/dev/null/x")
    apart = ["unshare", "--user", "--map-user=1000"]  # to be another one than root
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    home = {"HOME": "/dev/null/x"}
    assert "SHIV_ROOT" in refused(*apart, *program, **home)
    environment = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path), **home}
    assert subprocess.run([*apart, *program], env=environment).returncode == 0
    (folder,) = (tmp_path / "gdrtop").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_an_unpacked_zipapp_that_others_can_change_is_not_run(built: Path, tmp_path: Path) -> None:
    program = [sys.executable, only(built, f"*-{HERE}.pyz"), "--version"]
    home = {"SHIV_ROOT": str(tmp_path / "shared")}
    started(*program, **home)
    (folder,) = (tmp_path / "shared").iterdir()
    folder.chmod(0o777)
    assert "can change" in refused(*program, **home)
    folder.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert "can change" in refused(*program, **home)


def test_a_full_disk_leaves_nothing_behind(built: Path, tmp_path: Path) -> None:
    limit = (
        f"import resource, os, sys; resource.setrlimit({resource.RLIMIT_FSIZE}, (9999, 9999));"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    program = [sys.executable, "-c", limit, sys.executable, only(built, f"*-{HERE}.pyz"), "--version"]
    assert "File too large" in refused(*program, SHIV_ROOT=str(tmp_path / "full"))
    assert list((tmp_path / "full").iterdir()) == []


@pytest.mark.parametrize("debian", ARCHITECTURES.values())
def test_debian_testing_runs_the_deb(built: Path, tmp_path: Path, debian: str) -> None:
    """Its Python is newer than those here, and qemu runs it for the other architecture."""
    native = ARCHITECTURES[HERE] == debian
    emulator = shutil.which("qemu-aarch64-static")
    if os.geteuid() or not shutil.which("mmdebstrap") or not (native or (emulator and debian == "arm64")):
        pytest.skip("it needs root, mmdebstrap, and qemu for the other architecture")
    tree = tmp_path / "tree"
    make = ["mmdebstrap", f"--arch={debian}", "--variant=extract", "--include=python3,dash,coreutils"]
    options = ["--aptopt=Acquire::Check-Valid-Until false", "testing", tree]  # a mirror may be late
    if subprocess.run([*make, *options], capture_output=True).returncode:
        pytest.skip("Debian testing cannot be had here")
    for name in ("bin", "lib", "lib64"):  # base-files makes them when it is configured
        (tree / "usr" / name).mkdir(exist_ok=True)
        if not (tree / name).exists():
            (tree / name).symlink_to(f"usr/{name}")
    (tree / "dev").mkdir(exist_ok=True)
    (tree / "dev/null").touch()
    started("dpkg-deb", "-x", only(built, f"*_{debian}.deb"), tree)
    program: list[str | Path] = ["chroot", tree]
    if native:
        program += ["/usr/bin/gdrtop"]
    else:
        shutil.copy(str(emulator), tree / "qemu")
        program += ["/qemu", "/usr/bin/python3", "-I", "/usr/lib/gdrtop", "gdrtop"]
    for arguments, shown in list(COMMANDS.items())[: None if native else 1]:  # qemu takes a minute for each
        assert shown in started(*program, *arguments)


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
    subprocess.run(
        [*dpkg, "-i", only(built, f"*_{ARCHITECTURES[HERE]}.deb")], check=True, capture_output=True
    )
    check(root / "usr/bin/gdrtop")
    assert list((root / "usr/lib/gdrtop/tui").glob("__pycache__/*.pyc"))
    assert_shared(root, "usr/share/zsh/vendor-completions/_gdrtop")
    terms = (root / "usr/share/doc/gdrtop/copyright").read_text(encoding="utf-8")
    assert "/usr/share/common-licenses/LGPL-2.1" in terms
    for bundled in (root / "usr/lib/gdrtop").glob("*.dist-info"):
        assert f"usr/lib/gdrtop/{bundled.name}*" in terms
    assert (root / "usr/share/doc/gdrtop/changelog.gz").is_file()
    subprocess.run([*dpkg, "-r", "gdrtop"], check=True, capture_output=True)
    assert not (root / "usr/lib/gdrtop").exists()


def test_the_rpm_holds_the_same_and_starts(built: Path, tmp_path: Path) -> None:
    program = (
        "import sys, rpm_rs; package = rpm_rs.Package.open(sys.argv[1]); package.extract(sys.argv[2]);"
        "print(package.metadata.name, [each.name for each in package.metadata.requires()],"
        "list(package.metadata.file_paths()))"
    )
    out = tmp_path / "root"
    told = started(TOOLS / "python", "-c", program, only(built, f"*.{HERE}.rpm"), out)
    assert told.startswith("gdrtop ")
    assert "python3" in told
    assert "'/usr/share/doc/gdrtop'" in told  # or it would stay when the package is removed
    check("sh", out / "usr/bin/gdrtop")
    assert_shared(out, "usr/share/zsh/site-functions/_gdrtop")


@pytest.mark.skipif(not SITE.is_dir(), reason="make site has not built the documentation")
def test_the_documentation_is_a_package_of_its_own(built: Path, tmp_path: Path) -> None:
    page = "usr/share/doc/gdrtop/html/findings/acs-redirect-enabled/index.html"
    read_rpm = "import sys, rpm_rs; rpm_rs.Package.open(sys.argv[1]).extract(sys.argv[2])"
    started(TOOLS / "python", "-c", read_rpm, only(built, "gdrtop-doc-*.noarch.rpm"), tmp_path / "rpm")
    assert (tmp_path / "rpm" / page).is_file()
    if shutil.which("dpkg-deb"):
        started("dpkg-deb", "-x", only(built, "gdrtop-doc_*_all.deb"), tmp_path / "deb")
        assert (tmp_path / "deb" / page).is_file()


def assert_shared(root: Path, zsh: str) -> None:
    for path in (
        "usr/share/man/man1/gdrtop.1.gz",
        "usr/share/bash-completion/completions/gdrtop",
        "usr/share/fish/vendor_completions.d/gdrtop.fish",
        zsh,
    ):
        assert (root / path).is_file(), path


def first_screen(terminal: Terminal) -> list[str]:
    """What is wrong, the head, the panels and the keys, without numbers: rates and the clock go on."""
    lines = re.sub(" +", " ", re.sub(r" *\d+(?:\.\d+)?", "#", terminal.text)).splitlines()
    # A busy machine has an event of its own in a panel, which leaves less room: only the titles count.
    titles = [title for line in lines for title in re.findall("╭─ ((?!NUMA).*?) [─·]", line)]
    return [*lines[:2], *titles, lines[-1]]


def test_each_way_to_try_it_shows_one_first_screen(built: Path, tmp_path: Path) -> None:
    """As a new user has it: what the README says, the .pyz and the image, with an empty home."""
    (node,) = re.findall(r"(?m)^DEMO \?= (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"(?m)^    uvx (--from \. gdrtop --demo \S+)", readme)
    assert "\n    make demo " in readme
    assert command.split()[-1] == node
    image = (ROOT / "tui/deploy/Containerfile").read_text(encoding="utf-8")
    assert re.findall("(?m)^ENTRYPOINT (.*)", image)[-1] == '["gdrtop"]'
    assert re.findall("(?m)^ENV PATH=(.*)", image)[-1] == "/opt/gdrtop/bin:$PATH"
    started(TOOLS / "uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "image")
    packages = [only(built, "*.whl"), "--quiet", "--python", tmp_path / "image"]
    subprocess.run([TOOLS / "uv", "pip", "install", *packages], check=True)
    demo = subprocess.run(
        ["make", "--no-print-directory", "-n", "demo"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()[-1]
    ways: dict[str, list[str | Path]] = {
        "uvx": [TOOLS / "uvx", "--python", sys.executable, *command.split()],
        ".pyz": [sys.executable, only(built, f"*-{HERE}.pyz"), "--demo", node],
        "image": [tmp_path / "image/bin/gdrtop", "--demo", node],
        "make demo": demo.split(),
    }
    screens = {}
    for way, argv in ways.items():
        home = tmp_path / f"home of {way}"
        home.mkdir()
        others = re.compile("XDG_|TEXTUAL|PYTHON|GDRTOP_|COLUMNS|LC_|VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not others.match(name)}
        environment = {**kept, "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        with on_terminal(argv, environment) as terminal:
            terminal.until(lambda: all(words in terminal.text for words in ("press f", "f Fix", "l Load")))
            screens[way] = first_screen(terminal)
            terminal.press("q")
            terminal.until(lambda: terminal.process.poll() is not None)
    for way, screen in screens.items():
        assert screen == screens["uvx"], f"{way} differs from uvx"


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
    containerfile = ROOT / "tui/deploy/Containerfile"
    subprocess.run(
        ["podman", "build", "-f", containerfile, "-t", "gdrtop-test", "."], cwd=tmp_path, check=True
    )
    run = ["podman", "run", "--rm", "gdrtop-test", "--version"]
    assert subprocess.run(run, capture_output=True, text=True).stdout.startswith("gdrtop 0.")
