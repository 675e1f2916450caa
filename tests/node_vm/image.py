"""The guest's disks, made in layers that are kept until what they are made of changes.

packages-KEY.tar    Debian with a kernel and the tools, of mmdebstrap      about 75 s, 0.9 GB
node-KEY/           the same unpacked, with the stub modules; disk, initramfs, kernel      about 15 s, 1.2 GB
program-KEY.img     gdrtop in a virtual environment, installed from its wheel      about 10 s
"""

import fcntl
import hashlib
import lzma
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.support.system_packages import SYSTEM_PATH

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SUITE = "bookworm"
GUEST_PYTHON = "3.11"
PACKAGES = (
    "linux-image-amd64",  # the cloud kernel has no rdma_rxe
    "linux-headers-amd64",
    "gcc",
    "make",
    "kmod",
    "udev",
    "procps",
    "psmisc",
    "iproute2",
    "pciutils",
    "numactl",
    "python3",
    "python3-venv",
    "rdma-core",
    "ibverbs-utils",
    "ibverbs-providers",
    "perftest",
    "openssh-server",
    "sudo",
    "tmux",
)
# Of /usr/share nothing is needed that is only for reading; of the kernel, no drivers of other hardware.
UNREAD = ("man", "locale", "doc", "info")
DRIVERS = ("gpu", "media", "staging", "usb", "hwmon", "iio", "scsi", "mtd", "ata", "hid", "input", "comedi")
DRIVERS += ("i2c", "bluetooth", "isdn", "leds", "watchdog", "mmc", "video", "platform", "md", "edac", "w1")
NETWORKS = ("wireless", "usb", "phy", "can", "arcnet", "wan", "hamradio", "ppp")
# The fewer modules there are, the quicker a test's depmod is.
OTHER_HARDWARE = ("sound", *(f"drivers/{name}" for name in (*DRIVERS, *(f"net/{name}" for name in NETWORKS))))
NOT_FOR_RUNNING = ("boot", "var/cache/apt", "var/lib/apt/lists", "usr/lib/gcc", "usr/libexec/gcc")
DISK_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")
DISK_SIZE, PROGRAM_SIZE = "1800M", "300M"
STUBS = "updates/stubs"
TYPISTS_PASSWORD = "correct-horse"  # of a guest that nobody can reach


@dataclass(frozen=True)
class Image:
    """The files that a guest is booted from."""

    kernel: Path
    initramfs: Path
    disk: Path
    program: Path
    key: Path  # ssh key of all the guest's users


def cache_directory() -> Path:
    """Where the layers are kept for all workers and later runs: GDRTOP_VM_CACHE, else below ~/.cache.

    XDG_CACHE_HOME is a directory of each process while tests run (tests/conftest.py).
    """
    return Path(os.environ.get("GDRTOP_VM_CACHE") or Path.home() / ".cache/gdrtop-node-vm")


def build() -> Image:
    """The image for the project as it is now; layers that are there are taken."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Several workers of one run want the same; the first makes it. Closing the file lets the lock go.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _built(cache)


def _built(cache: Path) -> Image:
    packages = _packages(cache)
    node = _node(cache, packages)
    return Image(
        kernel=node / "vmlinux",
        initramfs=node / "initramfs.img",
        disk=node / "disk.img",
        program=_program(cache, node),
        key=node / "key",
    )


def _call(*argv: str | Path, cwd: Path | None = None) -> str:
    """A command's output; its complaint is shown when it fails."""
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"}
    done = subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        told = f"{done.stdout}{done.stderr}"
        raise RuntimeError(f"{' '.join(map(str, argv))} ended with {done.returncode}:\n{told}")
    return done.stdout


def _key(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return digest.hexdigest()[:16]


def _files(*directories: Path) -> Iterable[bytes]:
    """Names, modes and contents of all files below."""
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                mode = "x" if os.access(path, os.X_OK) else "-"
                yield f"{path.relative_to(HERE)} {mode}".encode()
                yield path.read_bytes()


@contextmanager
def _made(final: Path) -> Iterable[Path]:
    """A name to make a layer under, renamed when it is whole; older layers of the kind go."""
    kind = final.name.split("-")[0]
    for old in final.parent.glob(f"{kind}-*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    partial = final.with_name(f"{final.name}.partial")
    yield partial
    partial.rename(final)


def _packages(cache: Path) -> Path:
    final = cache / f"packages-{_key(SUITE, *PACKAGES, *UNREAD)}.tar"
    if final.exists():
        return final
    # This machine's own mirror; else mmdebstrap's default.
    lists = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    mirror = [str(path) for path in lists if path.is_file() and SUITE in path.read_text()][:1]
    leave_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNREAD]
    options = ["--mode=root", "--variant=minbase", "--format=tar", '--aptopt=Apt::Install-Recommends "false"']
    with _made(final) as partial:
        _call("mmdebstrap", *options, *leave_out, f"--include={','.join(PACKAGES)}", SUITE, partial, *mirror)
    return final


def _node(cache: Path, packages: Path) -> Path:
    code = (HERE / "image.py").read_bytes()
    final = cache / f"node-{_key(packages.name, code, *_files(HERE / 'guest', HERE / 'initramfs'))}"
    if final.exists():
        return final
    with _made(final) as node:
        root = node / "root"
        root.mkdir(parents=True)
        _call("tar", "-C", root, "-xf", packages)
        shutil.copytree(HERE / "guest", root, dirs_exist_ok=True)
        release = next((root / "lib/modules").iterdir()).name
        modules = root / "lib/modules" / release
        _build_stubs(root, modules)
        _add_users(root, node / "key")
        # libmlx5 must not take the software devices for its own because of their pretended parents.
        for provider in (root / "etc/libibverbs.d").glob("mlx?.driver"):
            provider.unlink()
        (node / "vmlinux").write_bytes(_unpacked((root / "boot" / f"vmlinuz-{release}").read_bytes()))
        (root / "opt/gdrtop").mkdir()
        (root / "usr/local/bin/gdrtop").symlink_to("/opt/gdrtop/bin/gdrtop")
        _slim(root, modules)
        _call("depmod", "-b", root, release)
        (root / "usr/share/depmod").mkdir()
        for file in modules.glob("modules.*"):
            shutil.copy(file, root / "usr/share/depmod")
        _pack_initramfs(root, release, node / "initramfs.img")
        _pack_disk(root, node / "disk.img", DISK_SIZE)
    return final


def _unpacked(kernel: bytes) -> bytes:
    """The kernel without its own unpacking, which takes emulation seconds; QEMU enters it by its PVH note.

    One that is not packed by xz is left as it is. Linux' Documentation/arch/x86/boot.rst has the fields.
    """
    (payload,) = struct.unpack_from("<I", kernel, 0x248)
    packed = kernel[(kernel[0x1F1] + 1) * 512 + payload :]
    if not packed.startswith(b"\xfd7zXZ\0"):
        return kernel
    return lzma.LZMADecompressor().decompress(packed)


def _build_stubs(root: Path, modules: Path) -> None:
    make = ("make", "--silent", "-C", "/usr/src/stubs", f"KERNEL={modules.name}")
    _call("chroot", root, *make)
    # Those that depmod finds, and whole ones to put back after a test has taken one away.
    for place in (modules / STUBS, root / "usr/share/stubs"):
        place.mkdir(parents=True)
        for module in (root / "usr/src/stubs").glob("*.ko"):
            shutil.copy(module, place)


def _add_users(root: Path, key: Path) -> None:
    """`admin` has sudo, `typist` after typing a password, `visitor` has not; the key opens all accounts."""
    _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    _call("chroot", root, "ssh-keygen", "-A")
    users = ("admin", "typist", "visitor")
    for name in users:
        _call("chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", name)
    subprocess.run(("chroot", root, "chpasswd"), input=f"typist:{TYPISTS_PASSWORD}", text=True, check=True)
    (root / "etc/sudoers.d/users").write_text("admin ALL=(ALL) NOPASSWD: ALL\ntypist ALL=(ALL) ALL\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost gpunode\n")
    for name, home in (("root", "root"), *((name, f"home/{name}") for name in users)):
        directory = root / home / ".ssh"
        directory.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(key.with_suffix(".pub"), directory / "authorized_keys")
        _call("chroot", root, "chown", "-R", f"{name}:{name}", f"/{home}/.ssh")


def _slim(root: Path, modules: Path) -> None:
    unneeded = [root / name for name in NOT_FOR_RUNNING]
    unneeded += [modules / "kernel" / name for name in OTHER_HARDWARE]
    unneeded += [*(root / "usr/src").glob("linux-*"), *(root / "usr/lib").glob("linux-kbuild-*")]
    for path in unneeded:
        path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)


def _pack_initramfs(root: Path, release: str, archive: Path) -> None:
    """A busybox that loads what the root disk needs."""
    wanted: list[str] = []
    for name in DISK_MODULES:
        for line in _call("modprobe", "-d", root, "-S", release, "--show-depends", name).splitlines():
            word, path = line.split()[:2]
            if word == "insmod" and path not in wanted:
                wanted.append(path)
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place)
        for name in ("bin", "dev", "proc", "sys", "newroot", "lib"):
            (tree / name).mkdir()
        shutil.copy(shutil.which("busybox") or "/bin/busybox", tree / "bin/busybox")
        shutil.copy(HERE / "initramfs/init", tree / "init")
        for path in wanted:
            shutil.copy(path, tree / "lib")
        (tree / "modules").write_text("".join(f"{Path(path).name}\n" for path in wanted))
        names = _call("find", ".", cwd=tree)
        cpio = ["cpio", "-o", "-H", "newc", "--quiet"]
        packed = subprocess.run(cpio, cwd=tree, input=names.encode(), capture_output=True, check=True)
        archive.write_bytes(packed.stdout)


def _pack_disk(tree: Path, disk: Path, size: str) -> None:
    sparse = ("-E", "lazy_itable_init=1,nodiscard", "-O", "^has_journal", "-m", "0")
    _call("mke2fs", "-q", "-F", "-t", "ext4", *sparse, "-d", tree, disk, size)


def _program(cache: Path, node: Path) -> Path:
    """gdrtop as an admin installs it on a node without internet: from wheels, into /opt/gdrtop."""
    with tempfile.TemporaryDirectory() as place:
        wheel = _wheel(Path(place))
        wanted = _dependencies()
        final = cache / f"program-{_key(node.name, wheel.read_bytes(), *wanted)}.img"
        if final.exists():
            return final
        wheels = _dependency_wheels(cache, wanted)
        with _made(final) as partial:
            root = node / "root"
            inside = root / "opt/wheels"
            shutil.rmtree(inside, ignore_errors=True)
            shutil.copytree(wheels, inside)
            shutil.copy(wheel, inside)
            program = root / "opt/gdrtop"
            shutil.rmtree(program)
            _call("chroot", root, "python3", "-m", "venv", "/opt/gdrtop")
            offline = ("install", "--quiet", "--no-index", "--find-links", "/opt/wheels")
            _call("chroot", root, "/opt/gdrtop/bin/pip", *offline, "gdrtop")
            _pack_disk(program, partial, PROGRAM_SIZE)
            shutil.rmtree(inside)
            shutil.rmtree(program)
            program.mkdir()
    return final


def _pip(*arguments: str | Path) -> None:
    _call(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def _wheel(directory: Path) -> Path:
    _pip("wheel", "--quiet", "--no-deps", "--wheel-dir", directory, PROJECT)
    return next(directory.glob("gdrtop-*.whl"))


def _dependencies() -> list[str]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line for line in project["dependencies"] if "python_version" not in line]


def _dependency_wheels(cache: Path, wanted: Sequence[str]) -> Path:
    final = cache / f"wheels-{_key(GUEST_PYTHON, *wanted)}"
    if not final.exists():
        with _made(final) as partial:
            of_guest = ("--python-version", GUEST_PYTHON, "--platform", "manylinux2014_x86_64")
            _pip("download", "--quiet", "--only-binary=:all:", *of_guest, "--dest", partial, *wanted)
    return final
