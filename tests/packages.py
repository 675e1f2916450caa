"""Build what is published (make dist): wheel, sdist, wheelhouse, zipapp, .deb, .rpm, SBOM and checksums.

Two builds of one commit are equal byte for byte, as long as the index offers the same dependencies;
CONSTRAINTS names a file that fixes these.
"""

import argparse
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from build_version import build_version
from tui.settings.template import template

ROOT = Path(__file__).parents[1]
TOOLS = Path(os.environ.get("PACKAGING_TOOLS", Path(sys.prefix) / "packaging" / "bin"))
"""hatchling, shiv, nfpm and cyclonedx-py, in an environment of their own (the group "packaging")."""
OLDEST, NEWEST = 10, 13  # minor versions of Python 3 that the wheelhouse serves
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NOT_OURS = ("bin", "share", "example.py", "__pycache__")  # of the dependencies; example.py is nvidia-ml-py's
START = """\
#!/bin/sh
# The package serves every Python from 3.10 on: take the system's own, or the first newer one.
lib=$(dirname "$(readlink -f "$0")")/../lib/gdrtop
for python in python3 python3.13 python3.12 python3.11 python3.10; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' || continue
    exec "$python" -I -c '
import sys
sys.path.insert(0, sys.argv.pop(1))
from tui.cli import main
sys.exit(main())' "$lib" "$@"
done
echo "gdrtop: it needs Python 3.10 or newer; install python3.11, for example" >&2
exit 3
"""
# A user cannot write .pyc files there, and without them each start would compile everything again.
COMPILE = """\
#!/bin/sh
for python in python3 python3.13 python3.12 python3.11 python3.10; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' || continue
    "$python" -I -m compileall -q --invalidation-mode unchecked-hash "$DPKG_ROOT/usr/lib/gdrtop" || true
    exit 0
done
"""
CLEAN = """\
#!/bin/sh
[ "$1" = 1 ] || find "$DPKG_ROOT/usr/lib/gdrtop" -name __pycache__ -prune -exec rm -rf {} +  # 1: rpm upgrades
"""


class Build:
    """One build of all packages."""

    def __init__(self, out: Path, work: Path, constraints: str) -> None:
        self.out, self.work, self.constraints = out, work, constraints
        self.version = build_version(ROOT)
        epoch = os.environ.get("SOURCE_DATE_EPOCH") or _output(
            ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        )
        self.epoch = int(epoch)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONHASHSEED": "0",
        }
        self.house, self.lib = work / "wheelhouse", work / "lib"

    def run(self, *argv: str | Path) -> None:
        done = subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, argv))}\n{done.stdout}{done.stderr}")

    def pip(self, *arguments: str | Path) -> None:
        self.run(sys.executable, "-m", "pip", *arguments, "--quiet")

    def all(self) -> None:
        os.umask(0o022)
        self.run(TOOLS / "hatchling", "build", "-d", self.out)
        self.wheelhouse()
        self.tree()
        self.zipapp()
        self.system_packages()
        self.sbom()
        self.checksums()

    def wheelhouse(self) -> None:
        """Collect the wheels of gdrtop and its dependencies, for every Python, and pack them."""
        (wheel,) = self.out.glob("*.whl")
        limits = ["--constraint", self.constraints] if self.constraints else []
        self.pip("wheel", "--wheel-dir", self.house, wheel, *limits)
        for name in sorted(path.name for path in self.house.glob("*-cp*-cp3*.whl")):
            package, version, python, abi, *_ = name.split("-")
            for minor in range(OLDEST, NEWEST + 1):
                if python == abi != f"cp3{minor}":  # else it is for all of them, or there
                    self.pip(
                        *(
                            "download",
                            "--no-deps",
                            "--only-binary",
                            ":all:",
                            "--python-version",
                            f"3.{minor}",
                        ),
                        *("--dest", self.house, f"{package}=={version}"),
                    )
        name = f"gdrtop-{self.version}-wheelhouse-{platform.machine()}"
        with (
            gzip.GzipFile(self.out / f"{name}.tar.gz", "wb", mtime=self.epoch) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in sorted(self.house.iterdir()):
                member = tarfile.TarInfo(f"{name}/{path.name}")
                member.size, member.mtime, member.mode = path.stat().st_size, self.epoch, 0o644
                with path.open("rb") as content:
                    archive.addfile(member, content)

    def tree(self) -> None:
        """Install gdrtop and its dependencies into a directory that any Python can use."""
        self.pip(
            *("install", "--target", self.lib, "--no-compile", "--no-index", "--find-links", self.house),
            f"gdrtop=={self.version}",
        )
        shutil.copytree(self.lib / "share", self.work / "share")
        for name in NOT_OURS:
            path = self.lib / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for path in (self.lib, *self.lib.rglob("*")):  # nfpm sets its "mtime" only for what it makes itself
            os.utime(path, (self.epoch, self.epoch))

    def zipapp(self) -> None:
        self.run(
            *(TOOLS / "shiv", "--site-packages", self.lib, "--entry-point", "tui.cli:main", "--reproducible"),
            *("--python", "/usr/bin/env python3", "--output-file", self.out / f"gdrtop-{self.version}.pyz"),
        )

    def system_packages(self) -> None:
        """Build the .deb and the .rpm with nfpm, whose configuration may be JSON."""
        for name, text in (("gdrtop", START), ("compile", COMPILE), ("clean", CLEAN)):
            (self.work / name).write_text(text, encoding="utf-8")
            (self.work / name).chmod(0o755)
        page = self.work / "gdrtop.1.gz"
        page.write_bytes(gzip.compress((self.work / "share/man/man1/gdrtop.1").read_bytes(), 9, mtime=0))
        example = self.work / "config.toml"
        example.write_text(template(), encoding="utf-8")
        completions = {
            "bash-completion/completions/gdrtop": ("deb", "rpm"),
            "fish/vendor_completions.d/gdrtop.fish": ("deb", "rpm"),
            "zsh/site-functions/_gdrtop": ("rpm",),
        }
        shared = [
            {"src": str(self.work / "share" / path), "dst": f"/usr/share/{path}", "packager": kind}
            for path, kinds in completions.items()
            for kind in kinds
        ]
        zsh = {"src": str(self.work / "share/zsh/site-functions/_gdrtop"), "packager": "deb"}
        pythons = ("python3 >= 3.10", "python3.11", "python3.12", "python3.13")
        when = datetime.fromtimestamp(self.epoch, timezone.utc).isoformat()
        described = {
            "name": "gdrtop",
            "arch": ARCHITECTURES.get(platform.machine(), platform.machine()),
            # What comes before a release is older than it: "~" says so, in both formats.
            "version": re.sub(r"\.dev", "~dev", self.version),
            "version_schema": "none",
            "release": "1",
            "section": "admin",
            "maintainer": "gdrtop <gdrtop@localhost>",
            "description": "htop for GPUDirect RDMA",
            "license": "Apache-2.0",
            "mtime": when.replace("+00:00", "Z"),
            "umask": 0o022,
            "rpm": {"buildhost": "reproducible", "group": "Applications/System"},
            "scripts": {"postinstall": str(self.work / "compile"), "preremove": str(self.work / "clean")},
            "overrides": {
                "deb": {"depends": [" | ".join(["python3 (>= 3.10)", *pythons[1:]])]},
                "rpm": {"depends": [f"({' or '.join(pythons)})"]},
            },
            "contents": [
                {
                    "src": str(self.work / "gdrtop"),
                    "dst": "/usr/bin/gdrtop",
                    "file_info": {"mode": 0o755},
                },
                {"src": str(self.lib), "dst": "/usr/lib/gdrtop", "type": "tree"},
                {"src": str(page), "dst": "/usr/share/man/man1/gdrtop.1.gz"},
                # Not in /etc, where every start would read it: `gdrtop config --edit` begins with it, too.
                {"src": str(example), "dst": "/usr/share/doc/gdrtop/config.toml"},
                *shared,
                {**zsh, "dst": "/usr/share/zsh/vendor-completions/_gdrtop"},
            ],
        }
        config = self.work / "nfpm.yaml"
        config.write_text(json.dumps(described, indent=1), encoding="utf-8")
        for kind in ("deb", "rpm"):
            self.run(TOOLS / "nfpm", "package", "--config", config, "--packager", kind, "--target", self.out)

    def sbom(self) -> None:
        """List what is delivered, from an environment that holds nothing else."""
        delivered = self.work / "delivered"
        self.run(sys.executable, "-m", "venv", "--without-pip", delivered)
        self.pip(
            *("--python", delivered / "bin" / "python", "install", "--no-compile", "--no-index"),
            *("--find-links", self.house, f"gdrtop=={self.version}"),
        )
        self.run(
            *(TOOLS / "cyclonedx-py", "environment", "--pyproject", ROOT / "pyproject.toml"),
            *("--mc-type", "application", "--output-reproducible", "--output-format", "JSON"),
            *("--spec-version", "1.6", "--output-file", self.out / f"gdrtop-{self.version}.cdx.json"),
            delivered,
        )

    def checksums(self) -> None:
        files = sorted(path for path in self.out.iterdir() if path.is_file())
        sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
        (self.out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def _output(argv: Sequence[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def build(out: Path, constraints: str = "") -> None:
    """Build everything into this directory, which is emptied first."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # Always the same path: it could get into what is built.
    with tempfile.TemporaryDirectory() as work:
        Build(out, Path(work), constraints).all()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.packages", description=__doc__)
    parser.add_argument("out", metavar="DIR", type=Path)
    parser.add_argument("--constraints", metavar="FILE", default="")
    options = parser.parse_args()
    build(options.out, options.constraints)
    for path in sorted(options.out.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path}")
