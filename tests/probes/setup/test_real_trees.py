"""Trees of real packages: what gdrtop reads in them is what kmod says.

One tree is made here of Debian's kernel and rdma-core, where apt-get can download them, and one of the same
modules as Ubuntu packs them. GDRTOP_TREES names more roots, separated by colons, for example of `mmdebstrap`
with a driver that DKMS has built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from probes.base.unknown import Unknown, known
from probes.facts.kernel import symbol_versions
from probes.facts.kernel.installed_modules import InstalledModules, installed_releases, read_installed
from probes.facts.kernel.modules import LADDER
from probes.host.local import LocalHost
from probes.queries.finding import Status
from probes.setup.image import ImageKind, check_image
from probes.simulation.host import SimulatedHost
from tests.tui.pilot import SteppedClock

pytestmark = pytest.mark.slow
GIVEN = tuple(filter(None, os.environ.get("GDRTOP_TREES", "").split(":")))
_PACKAGES = ("rdma-core", "libibverbs1", "ibverbs-providers")
_SECONDS = 240


def run(*argv: str, cwd: Path | None = None) -> str:
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=cwd, timeout=_SECONDS)
    if ended.returncode:
        raise OSError(f"{argv[0]}: {ended.stderr.strip()[-200:]}")
    return ended.stdout


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of Debian's kernel and rdma-core, with the index that depmod writes."""
    packages, root = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("debian")
    try:
        needs = run("apt-cache", "depends", "--important", "linux-image-amd64")
        kernel = next(word for word in needs.split() if word.startswith("linux-image-"))
        kernel = next(word for word in needs.split() if word.startswith(f"{kernel[:12]}") and word != kernel)
        run("apt-get", "download", kernel, *_PACKAGES, cwd=packages)
        for package in packages.glob("*.deb"):
            run("dpkg-deb", "-x", str(package), str(root))
        release = next((root / "lib/modules").iterdir()).name
        run("depmod", "-b", str(root), release)
    except (OSError, StopIteration, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Debian's packages cannot be had: {error}")
    return root


@pytest.fixture(scope="session")
def packed(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network and RDMA modules of that tree as .ko.zst files, as Ubuntu has them."""
    if shutil.which("zstd") is None or "+ZSTD" not in run("modinfo", "--version"):
        pytest.skip("zstd, or a kmod that unpacks it, is not installed")
    root = tmp_path_factory.mktemp("packed")
    (modules,) = (debian / "lib/modules").iterdir()
    below = root / modules.relative_to(debian)
    drivers = modules / "kernel/drivers"
    shutil.copytree(drivers / "infiniband", below / "kernel/drivers/infiniband")
    for name in LADDER:
        shown = subprocess.run(
            ("modprobe", "-d", debian, "-S", modules.name, "--show-depends", name),
            capture_output=True,
            text=True,
        )
        for path in (
            Path(line.split()[1]) for line in shown.stdout.split("\n") if line.startswith("insmod ")
        ):
            copy = root / path.relative_to(debian)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    run("zstd", "-q", "-1", "--rm", "-r", str(below))
    for file in modules.glob("modules.[bo]*"):
        shutil.copy(file, below)
    for part in ("boot", "etc", "usr"):
        shutil.copytree(debian / part, root / part, symlinks=True)
    run("depmod", "-b", str(root), modules.name)
    return root


@pytest.fixture(params=["debian", "packed", *GIVEN])
def root(request: pytest.FixtureRequest) -> Path:
    if request.param in ("debian", "packed"):
        made: Path = request.getfixturevalue(request.param)
        return made
    return Path(request.param)


def modinfo(field: str, path: Path) -> tuple[str, ...]:
    return tuple(filter(None, run("modinfo", "-F", field, str(path)).split("\n")))


def kernels(root: Path) -> list[InstalledModules]:
    host = LocalHost(str(root))
    releases = installed_releases(host)
    assert not isinstance(releases, Unknown)
    return [read_installed(host, release, LADDER) for release in releases]


def named(root: Path, release: str, names: Sequence[str]) -> dict[str, Path]:
    """Return module -> file, by the name inside each file that may be one of them."""
    below = root / f"lib/modules/{release}"
    files = [path for path in below.rglob("*.ko*") if any(part in path.name for part in ("nvidia", *names))]
    files += [path for path in below.rglob("*.ko*") if path.name.replace("-", "_").split(".")[0] in names]
    found = {}
    for path in dict.fromkeys(files):
        for name in modinfo("name", path):
            found[name.replace("-", "_")] = path
    return {name: path for name, path in found.items() if name in names}


def test_modules_are_found_as_their_files_name_themselves(root: Path) -> None:
    for kernel in kernels(root):
        truth = named(root, kernel.release, LADDER)
        assert {"ib_core", "mlx5_core", "mlx5_ib"} <= truth.keys()
        ours = {name: entry.path for name in LADDER if (entry := kernel.entry(name)) is not None}
        assert ours == {name: f"/{path.relative_to(root)}" for name, path in truth.items()}


def test_the_fields_of_a_file_are_those_of_modinfo(root: Path) -> None:
    for kernel in kernels(root):
        for name, path in named(root, kernel.release, LADDER).items():
            file = kernel.file(name)
            if path.suffix == ".zst":
                continue  # Python cannot unpack them
            assert not isinstance(file, Unknown)
            assert known(file.version, "") == "".join(modinfo("version", path)[:1])
            assert known(file.srcversion, "") == "".join(modinfo("srcversion", path)[:1])
            assert known(file.license, "") == "".join(modinfo("license", path)[:1])
            assert known(file.kernel, "") == kernel.release
            assert file.depends == tuple(
                word.replace("-", "_") for word in "".join(modinfo("depends", path)).split(",") if word
            )
            assert file.firmware == modinfo("firmware", path)[:16]


def test_the_versions_of_a_symbol_are_those_of_modprobe(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbol_versions, "PEER_MEMORY_SYMBOL", "ib_register_client")
    for kernel in kernels(root):
        needs, exports = (kernel.entry(name) for name in ("ib_uverbs", "ib_core"))
        assert needs is not None
        assert exports is not None
        by_modprobe = symbol_versions.read_versions(
            LocalHost(), f"{root}{needs.path}", "ib_core", f"{root}{exports.path}"
        )
        assert by_modprobe.differ is False
        ours = symbol_versions.read_versions(LocalHost(str(root)), needs.path, "ib_core", exports.path)
        if not exports.path.endswith(".zst"):  # Python cannot unpack them
            assert (ours.expected, ours.exported) == (by_modprobe.expected, by_modprobe.exported)


def test_what_must_be_loaded_before_a_module_is_what_modprobe_loads(root: Path) -> None:
    for kernel in kernels(root):
        for name in ("ib_uverbs", "mlx5_core", "mlx5_ib", "rdma_cm"):
            entry = kernel.entry(name)
            if entry is None or (root / "etc/modprobe.d").exists():
                continue  # modprobe would use the settings of this machine
            shown = run("modprobe", "-d", str(root), "-S", kernel.release, "--show-depends", name)
            loaded = [line.split()[1] for line in shown.split("\n") if line.startswith("insmod ")]
            names = [Path(path).name.split(".")[0].replace("-", "_") for path in loaded]
            assert [*entry.depends, name] == names


def test_the_tree_is_judged_as_an_operating_system(root: Path) -> None:
    result = check_image(LocalHost(str(root)), SimulatedHost("pcie-l40s", clock=SteppedClock()))
    assert result.kind is ImageKind.SYSTEM
    found = {finding.id for finding in result.findings if finding.status is Status.FOUND}
    has_driver = any(kernel.entry("nvidia") is not None for kernel in kernels(root))
    assert ("nvidia-not-loaded" in found) is not has_driver
    assert "mlx5-ib-not-loaded" not in found
    assert "libibverbs-missing" not in found
