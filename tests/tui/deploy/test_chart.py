"""The Helm chart: what Helm makes of it is valid in every version of Kubernetes, and reads the node only."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.support.command_line import ROOT
from tests.support.helm import CHART, check_object, documents, run_helm, versions, why_not
from tests.support.parsed_manifests import is_shell, plugin_of
from tui.commands.consumers.node_labels import _VALID_SECONDS
from tui.files.version import RELEASE
from tui.manual import page

IMAGE = {"image": {"repository": "registry.local:5000/gdrtop"}}
CONDITIONS = {"enabled": True, "image": {"repository": "r/gdrtop-npd", "digest": f"sha256:{'0' * 64}"}}
OFF = {"enabled": False}
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"  # what NFD reads by default
CASES: dict[str, dict[str, Any]] = {
    "as it is": IMAGE,
    "all": {
        **IMAGE,
        "conditions": CONDITIONS,
        "imagePullSecrets": [{"name": "own"}],
        "metrics": {
            "address": "[::]",
            "withCounters": True,
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        },
        "priorityClassName": "system-node-critical",
        "maxUnavailable": 1,
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"team": "hpc"},
        "podAnnotations": {"note": "x: y\n- z"},
    },
    "not privileged": {**IMAGE, "privileged": False, "tolerations": [], "nodeSelector": {"own": "true"}},
    "metrics only": {**IMAGE, "labels": OFF, "metrics": {"address": "127.0.0.1", "port": 19477}},
    "labels only": {**IMAGE, "metrics": OFF},
    "conditions only": {"metrics": OFF, "labels": OFF, "conditions": CONDITIONS},
}
needs_helm = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def rendered(values: dict[str, Any], directory: Path, version: str = "1.34") -> list[dict[str, Any]]:
    done = template(values, directory, version)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def template(
    values: dict[str, Any], directory: Path, version: str = "1.34"
) -> subprocess.CompletedProcess[str]:
    file = directory / "values.yaml"
    file.write_text(json.dumps(values))
    place = ("--namespace", "gdrtop", "--kube-version", version, "--values", str(file))
    return run_helm("template", "gdrtop", str(CHART), *place)


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = of_kind(objects, "DaemonSet")["spec"]["template"]["spec"]
    return pod


# Without Helm


def test_the_chart_has_the_version_of_the_newest_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == RELEASE


def test_the_schema_of_the_values_accepts_them_and_no_other_key() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    Draft7Validator.check_schema(schema)
    assert not list(Draft7Validator(schema).iter_errors(values))
    assert schema["properties"].keys() - {"global"} == values.keys()
    for part in ("image", "metrics", "labels", "conditions"):
        known = schema["properties"][part].get("properties") or schema["definitions"]["image"]["properties"]
        assert known.keys() == values[part].keys(), part


def test_labels_are_written_again_before_they_expire() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["labels"]["properties"]["interval"]["maximum"] < _VALID_SECONDS
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert 2 * values["labels"]["interval"] < _VALID_SECONDS
    assert f"older than {_VALID_SECONDS // 60} minutes" in (CHART / "values.yaml").read_text()


# With Helm


@pytest.mark.slow
@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_say_about_the_chart(case: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(CASES[case]))
    done = run_helm("lint", "--strict", "--quiet", str(CHART), "--values", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_every_version_of_kubernetes_accepts_the_objects(case: str, tmp_path: Path) -> None:
    for version in versions():
        objects = rendered(CASES[case], tmp_path, version)
        for found in objects:
            if found["kind"] == "ServiceMonitor":  # of the Prometheus Operator
                assert found["spec"].keys() == {"selector", "endpoints"}
                assert found["spec"]["endpoints"][0].keys() == {"port", "interval", "relabelings"}
            else:
                check_object(found, version)
        mounts = pod_of(objects)["containers"][0]["volumeMounts"]
        is_recursive = any("recursiveReadOnly" in mount for mount in mounts)
        assert is_recursive == (int(version.partition(".")[2]) >= 31)


@pytest.mark.slow
@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_the_pod_only_reads_the_node(case: str, tmp_path: Path) -> None:
    objects = rendered(CASES[case], tmp_path)
    pod = pod_of(objects)
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts.keys() <= paths.keys()
        assert mounts["host"]["mountPath"] == "/host"
        writable = {paths[name] for name, mount in mounts.items() if not mount.get("readOnly")} - {None}
        assert writable == ({FEATURES} if container["name"] == "labels" else set())
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        if case == "not privileged":
            assert security["capabilities"]["drop"] == ["ALL"]
            assert security["allowPrivilegeEscalation"] is False
            assert "privileged" not in security
        else:
            assert security["privileged"] is True
        assert container["resources"].keys() == {"requests", "limits"}


@pytest.mark.slow
@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_only_node_problem_detector_may_ask_the_api_server(case: str, tmp_path: Path) -> None:
    objects = rendered(CASES[case], tmp_path)
    pod = pod_of(objects)
    assert pod["automountServiceAccountToken"] is False
    users = [
        container["name"]
        for container in pod["containers"]
        if any(mount["name"] == "token" for mount in container["volumeMounts"])
    ]
    has_conditions = CASES[case].get("conditions") is CONDITIONS
    assert users == (["conditions"] if has_conditions else [])
    roles = [found for found in objects if found["kind"].startswith(("ClusterRole", "Role"))]
    assert [role["roleRef"]["name"] for role in roles] == ["system:node-problem-detector"] * has_conditions


@pytest.mark.slow
@needs_helm
def test_what_selects_pods_and_services_fits(tmp_path: Path) -> None:
    objects = rendered(CASES["all"], tmp_path)
    daemon_set, service = of_kind(objects, "DaemonSet"), of_kind(objects, "Service")
    labels = daemon_set["spec"]["template"]["metadata"]["labels"].items()
    assert daemon_set["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    monitor = of_kind(objects, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert ("app.kubernetes.io/name", "gdrtop") in labels  # by which kubectl gdrtop finds the pods
    text = (ROOT / "tui/deploy/kubectl-gdrtop").read_text()
    assert "--selector=app.kubernetes.io/name=gdrtop" in text
    assert daemon_set["spec"]["template"]["metadata"]["annotations"]["note"] == "x: y\n- z"


@pytest.mark.slow
@needs_helm
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "image.repository is not set; build the image from tui/deploy/Containerfile"),
        ({**IMAGE, "conditions": {"enabled": True}}, "conditions.image.repository is not set"),
        ({"metrics": OFF, "labels": OFF}, "nothing is enabled"),
        ({**IMAGE, "metric": OFF}, "'metric'"),
        ({**IMAGE, "metrics": {"port": 0}}, "/metrics/port"),
        ({**IMAGE, "metrics": {"address": "::"}}, "/metrics/address"),
        ({**IMAGE, "labels": {"interval": 900}}, "/labels/interval"),
        ({**IMAGE, "labels": {"directory": "/a\nb: c"}}, "/labels/directory"),
        ({"image": {"repository": "a\nb"}}, "/image/repository"),
        ({**IMAGE, "nodeSelector": {"a": True}}, "/nodeSelector/a"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], why: str, tmp_path: Path) -> None:
    done = template(values, tmp_path)
    assert done.returncode != 0
    assert why in done.stderr.replace(".", "/") or why in done.stderr


def scripts(directory: Path, *replaced: tuple[str, str]) -> dict[str, Path]:
    """The files of the ConfigMap, with other paths in place of those of the container."""
    data = of_kind(rendered(CASES["all"], directory), "ConfigMap")["data"]
    found = {}
    for name, text in data.items():
        for path, other in (*replaced, ("/gdrtop/", f"{directory}/"), ("/features", f"{directory}/features")):
            text = text.replace(path, other)
        found[name] = directory / name
        found[name].write_text(text)
        found[name].chmod(0o755)
        assert name.endswith(".json") or is_shell(text)
    return found


@pytest.mark.slow
@needs_helm
def test_the_labels_are_written_at_once_or_not_at_all(tmp_path: Path) -> None:
    gdrtop, features = tmp_path / "program", tmp_path / "features"
    features.mkdir()
    found = scripts(tmp_path, ("/opt/gdrtop/bin/gdrtop", str(gdrtop)), ("sleep 300", "exit 0"))
    for printed, status in (("first", 0), ("half", 3)):
        gdrtop.write_text(f'#!/bin/sh\necho "{printed} $* $GDRTOP_READ_ONLY"\nexit {status}\n')
        gdrtop.chmod(0o755)
        subprocess.run([str(found["labels"])], check=True)
        expected = "first check --for nfd --host host --over chroot /{host} true\n"
        assert (features / "gdrtop").read_text() == expected


@pytest.mark.slow
@needs_helm
def test_gdrtop_in_the_container_reads_the_node(tmp_path: Path) -> None:
    """The commands of the containers, with a simulated node below /host."""
    gdrtop, chroot = tmp_path / "program", tmp_path / "chroot"
    python = shlex.quote(sys.executable)
    gdrtop.write_text(f'#!/bin/sh\nexec {python} -m tui "$@"\n')
    node = f"{python} -m tests.support.stand_in /host=hgx-h100+no-gdr-path"
    chroot.write_text(f'#!/bin/sh\nexec {node} "$@"\n')
    for program in (gdrtop, chroot):
        program.chmod(0o755)
    script = scripts(tmp_path, ("/opt/gdrtop/bin/gdrtop", str(gdrtop)))["node"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/nonexistent"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(script), *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
        )

    metrics = run("metrics")
    assert metrics.returncode == 0, metrics.stderr
    assert 'source="remote"' in metrics.stdout
    assert 'gdrtop_verdict{state="broken"} 1.0' in metrics.stdout
    condition = run("check", "--for", "npd")
    assert (condition.returncode, condition.stderr) == (1, "")
    assert condition.stdout.startswith("BROKEN")
    labels = run("check", "--for", "nfd")
    assert (labels.returncode, labels.stderr) == (0, "")
    assert "gdrtop.io/path=host\n" in labels.stdout
    action = run("do", "load-modules", "--yes")
    assert action.returncode == 2
    assert "gdrtop is read-only here" in action.stdout + action.stderr
    command = pod_of(rendered(CASES["metrics only"], tmp_path))["containers"][0]["command"]
    assert command[1:] == ["metrics", "--listen=127.0.0.1:19477", "--interval=60"]
    wrong = run(*command[1:], "--textfile", "a.prom")  # both options are understood
    assert "--textfile and --listen exclude each other" in wrong.stderr


@pytest.mark.slow
@needs_helm
def test_the_plugin_takes_no_failure_of_gdrtop_for_a_problem(tmp_path: Path) -> None:
    gdrtop = tmp_path / "program"
    found = scripts(tmp_path, ("/opt/gdrtop/bin/gdrtop", str(gdrtop)))
    plugin = plugin_of(found["npd.json"].read_text())
    (rule,) = plugin["rules"]
    assert plugin["conditions"][0]["type"] == "GPUDirectRDMADegraded"
    for body, status, printed in (
        ("echo BROKEN; exit 1", 1, "BROKEN"),
        ("echo READY", 0, "READY"),
        ("exit 1", 3, ""),  # as a Python that cannot start
        ("kill -9 $$", 137, ""),
    ):
        gdrtop.write_text(f"#!/bin/sh\n{body}\n")
        gdrtop.chmod(0o755)
        done = subprocess.run([rule["path"], *rule["args"]], capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (status, printed)


@pytest.mark.slow
@needs_helm
def test_the_notes_name_what_is_enabled(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    for case, words, others in (
        ("all", ("port 9477", "gdrtop.io/path", "GPUDirectRDMADegraded"), ()),
        ("labels only", ("gdrtop.io/path",), ("port 9477", "GPUDirectRDMADegraded")),
    ):
        file.write_text(json.dumps(CASES[case]))
        place = ("--dry-run=client", "--namespace", "gdrtop", "--values", str(file))
        done = run_helm("install", "gdrtop", str(CHART), *place)
        notes = done.stdout.partition("NOTES:")[2]
        assert "with nvidia.com/gpu.present=true" in notes, done.stderr
        assert all(word in notes for word in words)
        assert not any(word in notes for word in others)


@pytest.mark.slow
@needs_helm
def test_kubernetes_accepts_the_example_of_the_manual(tmp_path: Path) -> None:
    """A GPU and a NIC below one PCIe root, in all versions that have the API."""
    section = page("kubernetes").partition("\n## A GPU and its NIC below one PCIe root\n")[2]
    example = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    found = documents(example)
    assert [each["kind"] for each in found] == ["DeviceClass", "ResourceClaimTemplate"]
    for version in versions()[versions().index("1.34") :]:
        for each in found:
            check_object(each, version)
    devices = found[1]["spec"]["spec"]["devices"]
    assert [request["name"] for request in devices["requests"]] == devices["constraints"][0]["requests"]
