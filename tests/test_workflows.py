"""The workflows run only targets of the Makefile, with pinned actions and the rights that they need."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tui.files.version import RELEASE

ROOT = Path(__file__).parents[1]
TOOLS = Path(os.environ.get("DEPLOYMENT_TOOLS", Path(sys.prefix) / "deployment" / "bin"))
"""check-jsonschema, zizmor and Ansible, in an environment of their own (the group "deployment")."""
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
YAML_RULES = """{extends: default, rules: {line-length: {max: 130}, document-start: disable,
    truthy: {check-keys: false}, comments: {min-spaces-from-content: 1}}}"""
# What a job may write, and why a workflow has it.
WRITES = {
    ("release", "attest"): {"id-token", "attestations"},
    ("release", "index"): {"id-token"},
    ("release", "image"): {"packages", "id-token", "attestations"},
    ("release", "image-index"): {"packages", "id-token", "attestations"},
    ("release", "draft"): {"contents"},
    ("site", "deploy"): {"pages", "id-token"},
}

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="a source distribution has no workflows")


def loaded(path: Path) -> dict[str, Any]:
    """A YAML file; `on` is a word, not YAML 1.1's true."""
    content: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {("on" if key is True else key): value for key, value in content.items()}


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in loaded(path)["jobs"].items():
            yield path.stem, name, job


def test_each_step_is_a_target_of_the_makefile() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    steps = [
        (place, name, step["run"]) for place, name, job in jobs() for step in job["steps"] if "run" in step
    ]
    assert len(steps) > 10
    for place, name, command in steps:
        words = command.split()
        assert words[:1] + words[2:] == ["make"], f"{place}.yml, {name}: {command!r} belongs in the Makefile"
        assert words[1] in targets, f"{place}.yml, {name}: no target {command!r}"


def test_each_action_is_pinned_by_its_commit_and_names_its_release() -> None:
    pins = {}
    for path in WORKFLOWS:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "uses:" in line:
                pin = re.fullmatch(r"\s+(?:- )?uses: ([\w-]+/[\w-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
                assert pin, f"{path.name}: {line.strip()}"
                assert pins.setdefault(pin[1], pin.groups()) == pin.groups(), f"{pin[1]} has two versions"


def test_each_job_has_the_rights_that_it_needs_and_a_time_limit() -> None:
    written = {}
    for place, name, job in jobs():
        assert job["timeout-minutes"] <= 300
        rights = job["permissions"]
        assert set(rights.values()) <= {"read", "write"}
        if writes := {right for right, level in rights.items() if level == "write"}:
            written[place, name] = writes
        for step in job["steps"]:
            if "/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
    assert written == WRITES
    assert all(loaded(path)["permissions"] == {} for path in WORKFLOWS)


def test_no_workflow_runs_what_others_write() -> None:
    for path in WORKFLOWS:
        assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(loaded(path)["on"])
    for place, name, job in jobs():
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), f"{place}.yml, {name}: text of others becomes a command"


def test_the_tests_run_with_every_python_on_both_architectures() -> None:
    from tests.packages import ARCHITECTURES, PYTHONS

    matrix = loaded(FORGE / "workflows/tests.yml")["jobs"]["fast"]["strategy"]["matrix"]
    assert set(matrix["python"]) == set(PYTHONS)
    assert len(matrix["runner"]) == len(ARCHITECTURES)


def test_what_is_published_was_built_once_and_is_attested_before() -> None:
    release = loaded(FORGE / "workflows/release.yml")["jobs"]
    assert [name for name, job in release.items() if "make dist" in str(job)] == ["build"]
    for name in ("index", "image", "image-index"):
        assert release[name]["environment"] == "release", f"a person approves {name}"
    for name, job in release.items():
        uses = str(job["steps"])
        assert ("download-artifact" in uses) == ("make check-release" in uses and name != "build")


def test_the_forms_ask_for_what_is_needed() -> None:
    forms = sorted((FORGE / "ISSUE_TEMPLATE").glob("*.yml"))
    assert {path.stem for path in forms} == {"config", "feature", "message", "nic-family", "wrong-verdict"}
    for path in forms:
        form = loaded(path)
        if path.stem == "config":
            assert form["blank_issues_enabled"] is False
            continue
        assert form["name"]
        assert form["description"]
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids))
        assert any(field.get("validations", {}).get("required") for field in form["body"])
    text = (FORGE / "ISSUE_TEMPLATE/wrong-verdict.yml").read_text(encoding="utf-8")
    assert "gdrtop record --redact" in text


@pytest.fixture
def release(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs a target beside the files of a release, and returns its status and what programs were asked."""
    for name in ("Makefile", "CHANGELOG.md", "tui/files/version.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    dist = tmp_path / "dist"
    dist.mkdir()
    for name in (
        f"gdrtop-{RELEASE}.tar.gz",
        f"gdrtop-{RELEASE}-py3-none-any.whl",
        f"gdrtop-{RELEASE}-x86_64.pyz",
    ):
        (dist / name).write_text(name)
    names = sorted(path.name for path in dist.iterdir())
    sums = subprocess.run(["sha256sum", *names], cwd=dist, capture_output=True, text=True, check=True).stdout
    (dist / "SHA256SUMS").write_text(sums)
    asked = tmp_path / "asked"
    for program in ("bin/gh", "bin/podman", ".venv/packaging/bin/uv"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = 'case "$*" in *digestfile*) echo sha256:1234 > build/digest;; esac'
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {asked}\n{digest}\n')
        path.chmod(0o755)
    for stamp in (".made", ".packaging"):
        (tmp_path / ".venv" / stamp).touch()

    def run(target: str, **variables: str) -> tuple[int, str]:
        asked.write_text("")
        environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), **variables}
        done = subprocess.run(["make", target], cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, asked.read_text() or done.stderr

    return run


def test_only_the_files_of_the_release_are_published(
    release: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    assert release("check-release", GITHUB_OUTPUT=str(output))[0] == 0
    assert output.read_text() == f"version={RELEASE}\n"
    wheel = tmp_path / f"dist/gdrtop-{RELEASE}-py3-none-any.whl"
    wheel.with_name(f"{wheel.name}.publish.attestation").touch()
    status, asked = release("publish")
    assert status == 0
    names = [
        f"{RELEASE}.tar.gz",
        f"{RELEASE}-py3-none-any.whl",
        f"{RELEASE}-py3-none-any.whl.publish.attestation",
    ]
    files = " ".join(f"dist/gdrtop-{name}" for name in names)
    assert asked == f"uv publish --trusted-publishing always {files}\n"
    wheel.write_text("something else")
    assert release("publish")[0] != 0
    wheel.unlink()
    assert release("check-release")[0] != 0


def test_the_draft_has_the_changes_of_the_release(
    release: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    status, asked = release("draft-release")
    assert status == 0
    assert asked.startswith(f"gh release create v{RELEASE} --draft --verify-tag ")
    assert "SHA256SUMS" in asked
    notes = (tmp_path / "build/notes.md").read_text(encoding="utf-8")
    assert notes.strip()
    assert "\n## " not in notes


def test_the_image_goes_to_its_registry_without_the_password_on_a_command_line(
    release: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    who = {"IMAGE": "registry.example/team/gdrtop", "REGISTRY_USER": "ci", "REGISTRY_TOKEN": "s3cret"}
    status, asked = release("push-image", GITHUB_OUTPUT=str(output), **who)
    assert status == 0
    assert "podman login --username ci --password-stdin registry.example\n" in asked
    assert f" registry.example/team/gdrtop:{RELEASE}-" in asked
    assert output.read_text() == "digest=sha256:1234\n"
    status, index = release("push-image-index", **who)
    assert status == 0
    assert f"docker://registry.example/team/gdrtop:{RELEASE}-aarch64" in index
    assert "s3cret" not in asked + index


@pytest.mark.slow
@pytest.mark.skipif(
    not (TOOLS / "zizmor").exists(), reason="the tools are not installed; run make test-slow once"
)
@pytest.mark.parametrize(
    "tool",
    [
        ["zizmor", "--offline", "--no-progress", "--quiet", ".github"],
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        ["yamllint", "--strict", "--config-data", YAML_RULES, ".github"],
    ],
)
def test_the_linters_find_nothing(tool: list[str]) -> None:
    done = subprocess.run([TOOLS / tool[0], *tool[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
