"""Build what is published (make dist): wheel, sdist, wheelhouses, zipapps, .deb, .rpm, SBOM and checksums.

All serve every Python that PYTHONS names, on both architectures, whatever Python and machine builds them. Two
builds of one commit are equal byte for byte, as long as the index offers the same dependencies (CONSTRAINTS
names a file that fixes these), and zlib and the tools of the group "packaging" have the same versions.
"""

import argparse
import email
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from build_version import build_version
from tui.settings.table import template

ROOT = Path(__file__).parents[1]
TOOLS = Path(os.environ.get("PACKAGING_TOOLS", Path(sys.prefix) / "packaging" / "bin"))
"""hatchling, uv, nfpm and cyclonedx-py, in an environment of their own (the group "packaging")."""
SITE = ROOT / "build" / "site"
"""The documentation, if make site has built it."""
PYTHONS = ("3.14", "3.13", "3.12", "3.11", "3.10")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Debian's names
GLIBC = ("manylinux2014", "manylinux_2_28", "manylinux_2_12")  # Python 3.10 is on no node with an older one
NOT_OURS = ("example.py",)  # nvidia-ml-py's
COMMON_LICENSES = {
    "Apache License": "Apache-2.0",
    "LESSER GENERAL PUBLIC LICENSE": "LGPL-2.1",
}  # Debian has them
FIND = f"""\
#!/bin/sh
# The package serves every Python from 3.10 on: take the system's own, or the first newer one.
for python in python3 {" ".join(f"python{version}" for version in PYTHONS)}; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
"""
START = (
    FIND
    + """\
    exec "$python" -I "$(dirname "$(readlink -f "$0")")/../lib/gdrtop" "$0" "$@"
done
echo "gdrtop: needs Python 3.10 or newer; install python3.11, for example" >&2
exit 3
"""
)
# A user cannot write .pyc files there, and without them each start would compile everything again.
COMPILE = (
    FIND
    + """\
    "$python" -I -m compileall -q --invalidation-mode unchecked-hash "$DPKG_ROOT/usr/lib/gdrtop" || true
    exit 0
done
"""
)
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

    def run(self, *argv: str | Path) -> None:
        done = subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, argv))}\n{done.stdout}{done.stderr}")

    def pip(self, *arguments: str | Path) -> None:
        self.run(sys.executable, "-m", "pip", *arguments, "--quiet")

    def all(self) -> None:
        os.umask(0o022)
        self.run(sys.executable, "-m", "hatchling", "build", "-d", self.out)
        self.lock()
        for architecture in ARCHITECTURES:
            house, lib = self.work / f"wheelhouse-{architecture}", self.work / f"lib-{architecture}"
            self.wheelhouse(architecture, house)
            self.tree(architecture, house, lib)
            self.zipapp(architecture, lib)
            self.system_packages(architecture, lib)
        if SITE.is_dir():
            self.documentation()
        self.sbom(lib)
        self.checksums()

    def resolve(self, out: str, *arguments: str | Path) -> None:
        # uv, because pip evaluates the markers of dependencies for the Python that runs it (pip#6117).
        self.run(
            TOOLS / "uv", "pip", "compile", "--quiet", "pyproject.toml", "-o", self.work / out, *arguments
        )

    def lock(self) -> None:
        """Choose one version of each dependency that serves every Python."""
        limits = ["--constraints", Path(self.constraints).absolute()] if self.constraints else []
        self.resolve(
            *("locked", "--universal", "--fork-strategy", "fewest", "--python-version", PYTHONS[-1], *limits)
        )
        for version in PYTHONS:
            self.resolve(
                *(version, "--constraints", self.work / "locked", "--python-version", version),
                *("--python-platform", "x86_64-manylinux_2_28"),
            )

        # A node without internet may have neither pip nor ensurepip.
        self.pip(
            *("download", "--no-deps", "--only-binary", ":all:", "--python-version", PYTHONS[-1]),
            *("--dest", self.work, "pip", *(["--constraint", self.constraints] if self.constraints else [])),
        )

    def wheelhouse(self, architecture: str, house: Path) -> None:
        """Collect the wheels of gdrtop and its dependencies for every Python, and pack them with pip's."""
        house.mkdir()
        for wheel in self.out.glob("*.whl"):
            shutil.copy(wheel, house)
        for version in PYTHONS:
            self.pip(
                *("download", "--no-deps", "--only-binary", ":all:", "--python-version", version),
                *(f"--platform={glibc}_{architecture}" for glibc in GLIBC),
                *("--dest", house, "-r", self.work / version),
            )
        name = f"gdrtop-{self.version}-wheelhouse-{architecture}"
        with (
            gzip.GzipFile(self.out / f"{name}.tar.gz", "wb", mtime=self.epoch) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in sorted([*house.iterdir(), *self.work.glob("pip-*.whl")]):
                member = tarfile.TarInfo(f"{name}/{path.name}")
                member.size, member.mtime, member.mode = path.stat().st_size, self.epoch, 0o644
                with path.open("rb") as content:
                    archive.addfile(member, content)

    def tree(self, architecture: str, house: Path, lib: Path) -> None:
        """Unpack all wheels into a directory that any Python can use: names of C files name the Python."""
        for path in sorted(house.iterdir()):
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(lib)
        data = lib / f"gdrtop-{self.version}.data" / "data" / "share"
        shutil.copytree(data, self.work / "share", dirs_exist_ok=True)
        for path in [*lib.glob("*.data"), *map(lib.joinpath, NOT_OURS)]:
            if unexpected := {each.name for each in path.glob("*lib")}:  # modules, not scripts and data
                sys.exit(f"{path.name} has {unexpected}")
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        digest = hashlib.sha256()
        for path in _files(lib):
            digest.update(f"{path.relative_to(lib)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        start = (ROOT / "tests" / "package_start.py").read_text(encoding="utf-8")
        name = f"gdrtop-{self.version}-{architecture}-{digest.hexdigest()[:16]}"
        assigned = f'ARCHITECTURE, BUILD = "{architecture}", "{name}"'
        (lib / "__main__.py").write_text(
            start.replace('ARCHITECTURE = BUILD = ""', assigned), encoding="utf-8"
        )
        for path in (lib, *lib.rglob("*")):  # nfpm sets its "mtime" only for what it makes itself
            os.utime(path, (self.epoch, self.epoch))

    def zipapp(self, architecture: str, lib: Path) -> None:
        """Pack the tree into one file, which unpacks itself (package_start.py)."""
        content = io.BytesIO()
        when = datetime.fromtimestamp(self.epoch, timezone.utc).timetuple()[:6]
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in _files(lib):
                member = zipfile.ZipInfo(str(path.relative_to(lib)), when)
                member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
                archive.writestr(member, path.read_bytes())
        program = self.out / f"gdrtop-{self.version}-{architecture}.pyz"
        program.write_bytes(b"#!/usr/bin/env python3\n" + content.getvalue())
        program.chmod(0o755)

    def system_packages(self, architecture: str, lib: Path) -> None:
        """Build the .deb and the .rpm with nfpm, whose configuration may be JSON."""
        for name, text in (("gdrtop", START), ("compile", COMPILE), ("clean", CLEAN)):
            (self.work / name).write_text(text, encoding="utf-8")
            (self.work / name).chmod(0o755)
        page = self.work / "gdrtop.1.gz"
        page.write_bytes(_compressed(self.work / "share/man/man1/gdrtop.1"))
        changes = self.work / "changelog.gz"
        changes.write_bytes(_compressed(ROOT / "CHANGELOG.md"))
        terms = self.work / "copyright"
        terms.write_text("\n".join(_copyright(lib)), encoding="utf-8")
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
        pythons = ("python3 >= 3.10", *(f"python{version}" for version in PYTHONS))
        described = {
            **self.described("gdrtop", "htop for GPUDirect RDMA", ARCHITECTURES[architecture], "admin"),
            "scripts": {"postinstall": str(self.work / "compile"), "preremove": str(self.work / "clean")},
            "overrides": {
                "deb": {"depends": [" | ".join(["python3 (>= 3.10)", *pythons[1:]])]},
                "rpm": {"depends": [f"({' or '.join(pythons)})"]},
            },
            "contents": [
                {"src": str(self.work / "gdrtop"), "dst": "/usr/bin/gdrtop", "file_info": {"mode": 0o755}},
                {"src": str(lib), "dst": "/usr/lib/gdrtop", "type": "tree"},
                {"src": str(page), "dst": "/usr/share/man/man1/gdrtop.1.gz"},
                # Not in /etc, where every start would read it.
                {"src": str(example), "dst": "/usr/share/doc/gdrtop/config.toml"},
                {"src": str(terms), "dst": "/usr/share/doc/gdrtop/copyright"},
                {"src": str(changes), "dst": "/usr/share/doc/gdrtop/changelog.gz"},
                {"dst": "/usr/share/doc/gdrtop", "type": "dir", "packager": "rpm"},
                *shared,
                {**zsh, "dst": "/usr/share/zsh/vendor-completions/_gdrtop"},
            ],
        }
        self.package(described)

    def documentation(self) -> None:
        """Pack the documentation, which make site has built: 34 MB of texts that gdrtop itself has, too."""
        html, terms = self.work / "html", {"src": str(self.work / "copyright")}
        shutil.copytree(SITE, html)
        for path in (html, *html.rglob("*")):
            os.utime(path, (self.epoch, self.epoch))
        about = "documentation of gdrtop, with a page for each finding and message"
        contents = [
            {"src": str(html), "dst": "/usr/share/doc/gdrtop/html", "type": "tree"},
            {**terms, "dst": "/usr/share/doc/gdrtop-doc/copyright"},
            {"dst": "/usr/share/doc/gdrtop-doc", "type": "dir", "packager": "rpm"},
        ]
        self.package({**self.described("gdrtop-doc", about, "all", "doc"), "contents": contents})

    def described(self, name: str, about: str, architecture: str, section: str) -> dict[str, object]:
        """Return what all packages say of themselves, as nfpm takes it."""
        when = datetime.fromtimestamp(self.epoch, timezone.utc).isoformat()
        return {
            "name": name,
            "arch": architecture,
            # What comes before a release is older than it: "~" says so, in both formats.
            "version": re.sub(r"\.dev", "~dev", self.version),
            "version_schema": "none",
            "release": "1",
            "section": section,
            "maintainer": "gdrtop <gdrtop@localhost>",
            "description": about,
            "license": "Apache-2.0",
            "mtime": when.replace("+00:00", "Z"),
            "umask": 0o022,
            "rpm": {"buildhost": "reproducible", "group": "Applications/System"},
        }

    def package(self, described: dict[str, object]) -> None:
        config = self.work / "nfpm.yaml"
        config.write_text(json.dumps(described, indent=1), encoding="utf-8")
        for kind in ("deb", "rpm"):
            self.run(TOOLS / "nfpm", "package", "--config", config, "--packager", kind, "--target", self.out)

    def sbom(self, lib: Path) -> None:
        """List what is delivered, from an environment that holds nothing else."""
        delivered = self.work / "delivered"
        self.run(sys.executable, "-m", "venv", "--without-pip", delivered)
        (packages,) = delivered.glob("lib/python*/site-packages")
        packages.rmdir()
        packages.symlink_to(lib)
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


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _compressed(path: Path) -> bytes:
    # gzip.compress() writes another header with Python 3.11 than with others.
    content = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, content, mtime=0) as packed:
        packed.write(path.read_bytes())
    return content.getvalue()


def _copyright(lib: Path) -> Iterator[str]:
    """Describe the licenses of gdrtop and of what it bundles, in Debian's format (DEP-5)."""
    yield "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    yield "Upstream-Name: gdrtop"
    for folder in sorted(lib.glob("*.dist-info")):
        about = email.message_from_string((folder / "METADATA").read_text(encoding="utf-8"))
        texts = [
            path.read_text(encoding="utf-8")
            for path in _files(folder)
            if re.match("LICEN[CS]E|COPYING|AUTHORS|NOTICE", path.name)
        ]
        classified = [each for each in about.get_all("Classifier", []) if each.startswith("License ::")]
        name = (about["License-Expression"] or [*classified, about["License"]][0]).rpartition(":: ")[2]
        record = (folder / "RECORD").read_text(encoding="utf-8").splitlines()
        tops = {re.split("[,/]", line)[0] for line in record} - set(NOT_OURS)
        holders = re.findall(r"(?m)^ *Copyright (?:\(c\) )?\d{4}.*$|^ *Copyright \w+, .*$", "\n".join(texts))
        yield ""
        yield f"Files: {' '.join(f'usr/lib/gdrtop/{top}*' for top in sorted(tops) if '.data' not in top)}"
        yield f"Copyright: {' '.join(holders) or about['Author'] or about['Author-email'] or 'its authors'}"
        yield f"License: {name.replace(' AND ', ' and ')}"
        for text in texts or ["Its wheel has no text of the license."]:
            common = next((name for title, name in COMMON_LICENSES.items() if title in text[:100]), None)
            if common:
                text = f"On Debian systems, the text is in /usr/share/common-licenses/{common}."
            yield "\n".join(f" {line.rstrip() or '.'}" for line in text.strip().splitlines())


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
