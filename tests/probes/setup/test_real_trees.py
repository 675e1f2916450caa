"""Trees of real packages: what gdrtop reads in them is what their own programs print.

One tree is made here of Debian's kernel, rdma-core, GRUB and initramfs-tools, where apt-get can download
them, and one of the same modules as Ubuntu packs them. GDRTOP_TREES names more roots, separated by colons,
for example the one with a driver that tests/probes/setup/debian_tree.py makes. A tree's programs need root.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown, known
from probes.facts.kernel import boot, module_files, symbol_versions
from probes.facts.kernel.boot import read_grub_options, read_next_line
from probes.facts.kernel.installed_modules import InstalledModules, installed_releases, read_installed
from probes.facts.kernel.module_files import DRIVER_PACKAGES
from probes.facts.kernel.modules import LADDER
from probes.facts.system import packages, tools
from probes.host.machine.local import LocalHost
from probes.plans.boot import initramfs_step
from probes.plans.load_modules import OWN_FILE
from probes.queries.finding import Status
from probes.setup.forecast import ImageKind, check_image
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.probes.setup.debian_tree import newest_kernel, run, unpack
from tests.support.pilot import SteppedClock
from tests.support.trees import link, write
from tui.cli import main

pytestmark = pytest.mark.slow
GIVEN = tuple(filter(None, os.environ.get("GDRTOP_TREES", "").split(":")))
_PACKAGES = ("rdma-core", "ibverbs-providers", "grub2-common", "initramfs-tools")
# A chroot has no block device.
_GRUB_PROBE = """\
#!/bin/sh
case "$*" in
*target=device*) echo /dev/vda1 ;;
*target=fs_uuid*) echo 1-1 ;;
*target=fs*) echo ext2 ;;
esac
"""


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of Debian's kernel, rdma-core, GRUB and initramfs-tools, with the index that depmod writes."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # one tree for all workers
    root, state = base / "debian", base / "debian.state"
    with (base / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not state.exists():
            state.write_text(_make(root, base / "archives"))
    if state.read_text():
        pytest.skip(state.read_text())
    return root


def _make(root: Path, archives: Path) -> str:
    """Make the tree; return why it cannot be made, or ""."""
    try:
        unpack(root, archives, (newest_kernel(), *_PACKAGES))
        (modules,) = (root / "lib/modules").iterdir()
        run("depmod", "-b", str(root), modules.name)
    except (OSError, StopIteration, subprocess.SubprocessError) as error:
        return f"Debian's packages cannot be had: {error}"
    shutil.copy(root / "usr/share/grub/default/grub", root / "etc/default/grub")
    write(root, "/usr/sbin/grub-probe", _GRUB_PROBE)
    write(root, "/etc/initramfs-tools/conf.d/small", "MODULES=list\n")
    write(root, "/proc/sys/kernel/random/boot_id", "1-1\n")
    return ""


def copied(tree: Path, root: Path, leave_out: str = "") -> Path:
    """Return a copy that shares its files with the tree: add files to it, and change none in place."""

    def ignored(directory: str, _: list[str]) -> list[str]:
        return [Path(leave_out).name] if directory == str(tree / Path(leave_out).parent) else []

    shutil.copytree(tree, root, symlinks=True, copy_function=os.link, ignore=ignored)
    return root


@pytest.fixture(scope="session")
def packed(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network and RDMA modules of that tree as .ko.zst files, as Ubuntu has them."""
    if shutil.which("zstd") is None or "+ZSTD" not in run("modinfo", "--version"):
        pytest.skip("zstd, or a kmod that unpacks it, is not installed")
    (modules,) = (debian / "usr/lib/modules").iterdir()
    root = copied(debian, tmp_path_factory.mktemp("packed") / "root", "usr/lib/modules")
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
    run("depmod", "-b", str(root), modules.name)
    return root


@pytest.fixture(params=["debian", "packed", *GIVEN])
def root(request: pytest.FixtureRequest) -> Path:
    if request.param in ("debian", "packed"):
        made: Path = request.getfixturevalue(request.param)
        return made
    return Path(request.param)


def inside(root: Path, *argv: str) -> str:
    """Return what a program of the tree prints."""
    if os.geteuid():
        pytest.skip("chroot needs root")
    return run("chroot", str(root), *argv)


def modinfo(field: str, path: Path) -> tuple[str, ...]:
    return tuple(filter(None, run("modinfo", "-F", field, str(path)).split("\n")))


def kernels(root: Path) -> list[InstalledModules]:
    host = LocalHost(str(root))
    releases = installed_releases(host)
    assert not isinstance(releases, Unknown)
    return [read_installed(host, release, LADDER) for release in releases]


def named(root: Path, release: str, names: Sequence[str]) -> dict[str, set[str]]:
    """Return module -> files, by the name inside each file that may be one of them.

    There are several where the driver is installed twice: Debian's alternatives choose one.
    """
    below = root / f"lib/modules/{release}"
    files = [path for path in below.rglob("*.ko*") if any(part in path.name for part in ("nvidia", *names))]
    files += [path for path in below.rglob("*.ko*") if path.name.replace("-", "_").split(".")[0] in names]
    found: dict[str, set[str]] = {}
    for path in dict.fromkeys(files):
        for name in modinfo("name", path):
            found.setdefault(name.replace("-", "_"), set()).add(f"/{path.relative_to(root)}")
    return {name: paths for name, paths in found.items() if name in names}


def test_modules_are_found_as_their_files_name_themselves(root: Path) -> None:
    for kernel in kernels(root):
        truth = named(root, kernel.release, LADDER)
        assert {"ib_core", "mlx5_core", "mlx5_ib"} <= truth.keys()
        ours = {name: entry.path for name in LADDER if (entry := kernel.entry(name)) is not None}
        assert ours.keys() == truth.keys()
        assert all(path in truth[name] for name, path in ours.items())


def test_the_fields_of_a_file_are_those_of_modinfo(root: Path) -> None:
    for kernel in kernels(root):
        for name in LADDER:
            entry, file = kernel.entry(name), kernel.file(name)
            if entry is None:
                continue
            path = root / entry.path.lstrip("/")
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


def loaded_files(root: Path, release: str, *module: str) -> list[str]:
    """The files that modprobe loads, in order, by the last command of an `install` line; OSError: none."""
    shown = inside(root, "modprobe", "-S", release, "--show-depends", *module).strip().split("\n")
    *_, last = shown
    if last.startswith("install "):
        return loaded_files(root, release, "-i", last.rpartition("modprobe -i ")[2].split()[0])
    return [line.split()[1] for line in shown]


def test_modprobe_loads_the_files_that_are_found_in_their_order(root: Path) -> None:
    for kernel in kernels(root):
        for name in LADDER:
            entry = kernel.entry(name)
            if entry is None:
                with pytest.raises(OSError, match="not found"):
                    loaded_files(root, kernel.release, name)
                continue
            before = [kernel.entry(needed) for needed in entry.depends]
            files = loaded_files(root, kernel.release, name)
            assert [needed.path for needed in before if needed is not None] + [entry.path] == files


def test_the_parts_of_the_driver_are_those_of_ldconfig_and_dkms(root: Path) -> None:
    host = LocalHost(str(root))
    if not any(kernel.entry("nvidia") for kernel in kernels(root)):
        pytest.skip("no NVIDIA driver in this tree")
    cached = dict(line.split(" => ") for line in inside(root, "ldconfig", "-p").split("\n") if " => " in line)
    paths = {key.split()[0]: path for key, path in cached.items()}
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libibverbs.so.1", "libmlx5.so.1"):
        (library, *_) = tools.probe_libraries(host).found[name]
        assert library.path == inside(root, "readlink", "-f", paths[name]).strip()
        assert library.path.endswith(f".{library.version}")
    facts = module_files.probe_dkms(host)
    assert not isinstance(facts, Unknown)
    ours = [
        f"{module.name}/{module.version}, {release}, {os.uname().machine}: installed"
        for module in facts.modules
        for release in module.installed
    ]
    listed = inside(root, "sh", "-c", "dkms status 2>/dev/null || true").strip().split("\n")
    assert sorted(listed) == sorted(ours)
    assert {module.name for module in facts.modules} & set(DRIVER_PACKAGES)


def test_the_tree_is_judged_as_an_operating_system(root: Path) -> None:
    result = check_image(LocalHost(str(root)), SimulatedHost("pcie-l40s", clock=SteppedClock()))
    assert result.kind is ImageKind.SYSTEM
    found = {finding.id for finding in result.findings if finding.status is Status.FOUND}
    has_driver = any(kernel.entry("nvidia") is not None for kernel in kernels(root))
    assert ("nvidia-not-loaded" in found) is not has_driver
    assert "mlx5-ib-not-loaded" not in found
    assert "libibverbs-missing" not in found


# The boot: what Debian's programs make of the files and commands of gdrtop


def test_the_script_of_setup_runs_to_its_end_and_grub_has_its_options(
    debian: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copied(debian, tmp_path / "root")
    inside(root, "true")
    main(["setup", "--script", "--demo", "hgx-h100+iommu-translated,acs-on"])
    write(root, "/tmp/setup.sh", capsys.readouterr().out)
    ended = subprocess.run(
        ("chroot", root, "sh", "/tmp/setup.sh"), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert (ended.returncode, "systemctl reboot" in ended.stderr) == (2, True)  # the rest is the admin's
    host = LocalHost(str(root))
    (kernel,) = kernels(root)
    line = read_next_line(host, kernel.release)
    assert not isinstance(line, Unknown)
    # GRUB splits and quotes like a shell: an unquoted semicolon ends the command.
    lexer = shlex.shlex(line.line, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    words = list(lexer)
    (redirects,) = [word for word in words if word.startswith("pci=disable_acs_redir=")]
    assert redirects.count(";") == 15
    assert "iommu=pt" in words
    inside(root, "grub-script-check", "/boot/grub/grub.cfg")
    configured = read_grub_options(host)
    assert not isinstance(configured, Unknown)
    assert line.line.split(" ro ")[1].split() == configured.split()


def test_the_kernel_that_boots_next_is_the_first_of_grubs_menu(debian: Path, tmp_path: Path) -> None:
    root = copied(debian, tmp_path / "root")
    host = LocalHost(str(root))
    (own,) = (path.name for path in (root / "usr/lib/modules").iterdir())
    for releases in (
        ("6.6.0", "6.6.0-rc7"),
        ("6.8.0-45-generic-64k", "6.8.0-45-lowlatency"),
        ("6.1.0-9-amd64",),
    ):
        for release in releases:
            write(root, f"/boot/vmlinuz-{release}", "")
            (root / "usr/lib/modules" / release).mkdir()
        inside(root, "update-grub")
        menu = (root / "boot/grub/grub.cfg").read_text().split("menuentry '")[1]
        image = next(line.split()[1] for line in menu.split("\n") if line.strip().startswith("linux"))
        facts = boot.probe(host, packages.probe(host), Unknown(Reason.NOT_THERE))
        assert facts.next_kernel == image.removeprefix("/boot/vmlinuz-")
        for release in releases:
            (root / f"boot/vmlinuz-{release}").unlink()
    assert facts.next_kernel == own


def test_the_boot_image_has_modprobe_d_and_not_modules_load_d(debian: Path, tmp_path: Path) -> None:
    """Only changes of the former need the command that rebuilds it."""
    root = copied(debian, tmp_path / "root")
    (kernel,) = kernels(root)
    inside(root, "update-initramfs", "-c", "-k", kernel.release)
    image = root / f"boot/initrd.img-{kernel.release}"
    settings = "options nvidia NVreg_GrdmaPciTopoCheckOverride=1\n"
    write(root, "/etc/nvidia/nvidia-modprobe.conf", settings)
    link(root, "/etc/modprobe.d/nvidia.conf", "/etc/nvidia/nvidia-modprobe.conf")  # as Debian's driver
    write(root, OWN_FILE, "nvidia_peermem\n")
    before = image.stat().st_ino
    host = LocalHost(str(root))
    system = packages.probe(host)
    facts = boot.probe(host, system, kernel.release)
    step = initramfs_step(replace(examine(SimulatedHost("hgx-h100")), distribution=system, boot=facts))
    inside(root, *step.argv)
    assert image.stat().st_ino != before
    files = inside(root, "lsinitramfs", f"/boot/{image.name}").split("\n")
    assert "etc/modprobe.d/nvidia.conf" in files
    assert OWN_FILE.lstrip("/") not in files
