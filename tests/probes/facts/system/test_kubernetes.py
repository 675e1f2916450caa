"""What the traces on a node and kubectl show of the GPU Operator and the Network Operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.kubernetes import (
    ContainerMessage,
    ContainerState,
    KubernetesFacts,
    kept_fields,
    message_of,
    objects,
    parse_failure,
    parse_log,
    probe,
)
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from tests.support.trees import write

NODE = "gpu-07"
POLICY: dict[str, Any] = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {
        "name": "cluster-policy",
        "labels": {"helm.sh/chart": "gpu-operator-v26.7.0"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    },
    "spec": {
        "driver": {
            "enabled": True,
            "version": "595.91.07",
            "kernelModuleType": "auto",
            "rdma": {"enabled": True, "useHostMofed": True},
            "env": [{"name": "HTTPS_PROXY", "value": "http://user:hunter2@proxy"}],
        },
        "gdrcopy": {"enabled": True},
    },
    "status": {"state": "ready", "conditions": [{"type": "Ready", "reason": "Reconciled"}]},
}
# As the GPU Operator shows itself with useNvidiaDriverCRD: the driver's fields are in another object.
DRIVER = {
    "kind": "NVIDIADriver",
    "metadata": {"name": "default"},
    "spec": {
        "default": True,
        "kernelModuleType": "open",
        "version": "580.178.04",
        "rdma": {"enabled": False},
        "gdrcopy": {"enabled": True},
    },
    "status": {"state": "ready"},
}
NIC_POLICY = {
    "kind": "NicClusterPolicy",
    "metadata": {"name": "nic-cluster-policy"},
    "spec": {
        "ofedDriver": {"image": "doca-driver", "version": "doca3.5.0-26.07-0.7.0.0-0"},
        "rdmaSharedDevicePlugin": {"image": "k8s-rdma-shared-dev-plugin", "config": "{}"},
    },
    "status": {"state": "notReady", "appliedStates": [{"name": "state-OFED", "state": "notReady"}]},
}
NODE_OBJECT = {
    "kind": "Node",
    "metadata": {
        "name": NODE,
        "labels": {
            "kubernetes.io/hostname": NODE,
            "example.com/team": "secret-team",
            "nvidia.com/gpu.present": "true",
            "network.nvidia.com/operator.mofed.wait": "true",
        },
    },
    "status": {"allocatable": {"cpu": "96", "nvidia.com/gpu": "8", "rdma/shared_a": "63"}},
}
POD = {
    "kind": "Pod",
    "metadata": {"name": "nvidia-driver-daemonset-x7k2p", "namespace": "gpu-operator"},
    "spec": {"containers": [{"env": [{"name": "TOKEN", "value": "hunter2"}]}]},
    "status": {
        "initContainerStatuses": [
            {
                "name": "k8s-driver-manager",
                "ready": True,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
            }
        ],
        "containerStatuses": [
            {"name": "nvidia-driver-ctr", "ready": True, "restartCount": 1, "state": {"running": {}}},
            {"name": "nvidia-peermem-ctr", "ready": False, "restartCount": 0, "state": {"running": {}}},
        ],
    },
}
CRASHING = {
    "metadata": {"name": "mofed-ubuntu24.04-5d8f-ds-abcde", "namespace": "nvidia-network-operator"},
    "status": {
        "containerStatuses": [
            {
                "name": "mofed-container",
                "ready": False,
                "restartCount": 12,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
            }
        ]
    },
}
WAITING = "waiting for mellanox ofed and nvidia drivers to be installed\n" * 30
FORBIDDEN = (
    'Error from server (Forbidden): clusterpolicies.nvidia.com is forbidden: User "alice" cannot list'
    ' resource "clusterpolicies" in API group "nvidia.com" at the cluster scope\n'
)
NO_TYPE = 'error: the server doesn\'t have a resource type "nicclusterpolicies"\n'


class Cluster(LocalHost):
    """A node whose kubectl answers by the kind of object."""

    def __init__(self, root: Path, tool: str = "kubectl", **answers: Any) -> None:
        super().__init__(str(root))
        self.tool = tool
        self.answers = {"node": NODE_OBJECT, "clusterpolicies": [POLICY], "pods": [], **answers}
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked.append(tuple(argv))
        if argv[0] != self.tool:
            return Unknown(Reason.NOT_THERE, argv[0], "not installed")
        kind = "logs" if argv[1] == "logs" else argv[2].partition(".")[0]
        answer = self.answers.get(kind, NO_TYPE)
        if isinstance(answer, Unknown):
            return answer
        if isinstance(answer, str):
            is_log = kind == "logs"
            return CommandOutput(tuple(argv), 0 if is_log else 1, answer if is_log else "", answer)
        if isinstance(answer, list):
            chosen = answer
            if kind == "pods":
                label = "mofed" if "nvidia.com/ofed-driver" in argv else "nvidia-driver"
                chosen = [pod for pod in answer if pod["metadata"]["name"].startswith(label)]
            answer = {"kind": "List", "items": chosen}
        return CommandOutput(tuple(argv), 0, json.dumps(answer), "")


def kubernetes(host: LocalHost, root: Path) -> KubernetesFacts:
    write(root, "/var/lib/kubelet/config.yaml", "")
    facts = probe(host, NODE)
    assert isinstance(facts, KubernetesFacts)
    return facts


def unknown(fact: object) -> Unknown:
    assert isinstance(fact, Unknown)
    return fact


# The node


def test_a_node_without_kubernetes_asks_nobody(tmp_path: Path) -> None:
    host = Cluster(tmp_path)
    assert unknown(probe(host, NODE)).reason is Reason.NOT_THERE
    assert host.asked == []


def test_a_validated_driver_shows_a_cluster_without_kubectl(tmp_path: Path) -> None:
    write(tmp_path, "/run/nvidia/validations/driver-ready", "")
    facts = kubernetes(Cluster(tmp_path, tool="none"), tmp_path)
    assert unknown(facts.tool).reason is Reason.NOT_THERE
    assert unknown(facts.gpu_operator).detail == "neither kubectl nor oc is installed"


@pytest.mark.parametrize(
    ("path", "name", "tool"),
    [
        ("/etc/rancher/k3s/config.yaml", "k3s", "kubectl"),
        ("/etc/rancher/rke2/config.yaml", "RKE2", "kubectl"),
        ("/var/lib/kubelet/kubeadm-flags.env", "kubeadm", "kubectl"),
        ("/etc/machine-config-daemon/currentconfig", "OpenShift", "oc"),
    ],
)
def test_distributions_and_their_tool(tmp_path: Path, path: str, name: str, tool: str) -> None:
    write(tmp_path, path, "")
    host = Cluster(tmp_path, tool=tool)
    facts = kubernetes(host, tmp_path)
    assert (facts.distribution, facts.tool) == (name, tool)
    assert host.asked[0][0] == tool


# The operators


def test_the_fields_of_a_cluster_policy(tmp_path: Path) -> None:
    operator = kubernetes(Cluster(tmp_path), tmp_path).gpu_operator
    assert not isinstance(operator, Unknown)
    assert (operator.name, operator.state, operator.version) == ("cluster-policy", "ready", "v26.7.0")
    assert (operator.driver_enabled, operator.driver_version) == (True, "595.91.07")
    assert (operator.rdma_enabled, operator.use_host_mofed) == (True, True)
    assert operator.uses_driver_crd is False


def test_switches_that_are_not_set_have_their_default(tmp_path: Path) -> None:
    policy = {"metadata": {"name": "p"}, "spec": {"driver": {"enabled": False}}}
    operator = kubernetes(Cluster(tmp_path, clusterpolicies=[policy]), tmp_path).gpu_operator
    assert not isinstance(operator, Unknown)
    assert (operator.rdma_enabled, operator.use_host_mofed) == (False, False)
    assert unknown(operator.state).reason is Reason.NOT_THERE


def test_an_nvidia_driver_object_overrules_the_cluster_policy(tmp_path: Path) -> None:
    spec = {**POLICY["spec"], "driver": {**POLICY["spec"]["driver"], "useNvidiaDriverCRD": True}}
    policy = {**POLICY, "spec": spec}
    cluster = Cluster(tmp_path, clusterpolicies=[policy], nvidiadrivers=[DRIVER])
    operator = kubernetes(cluster, tmp_path).gpu_operator
    assert not isinstance(operator, Unknown)
    assert (operator.driver_version, operator.rdma_enabled) == ("580.178.04", False)
    two = Cluster(tmp_path, clusterpolicies=[policy], nvidiadrivers=[DRIVER, DRIVER])
    operator = kubernetes(two, tmp_path).gpu_operator
    assert not isinstance(operator, Unknown)
    assert unknown(operator.rdma_enabled).detail == "2 NVIDIADriver objects"


def test_the_fields_of_a_nic_cluster_policy(tmp_path: Path) -> None:
    operator = kubernetes(Cluster(tmp_path, nicclusterpolicies=[NIC_POLICY]), tmp_path).network_operator
    assert not isinstance(operator, Unknown)
    assert (operator.state, operator.ofed_version) == ("notReady", "doca3.5.0-26.07-0.7.0.0-0")


def test_an_operator_that_is_not_installed_is_not_there(tmp_path: Path) -> None:
    facts = kubernetes(Cluster(tmp_path), tmp_path)
    assert unknown(facts.network_operator).reason is Reason.NOT_THERE
    assert unknown(kubernetes(Cluster(tmp_path, clusterpolicies=[]), tmp_path).gpu_operator).reason is (
        Reason.NOT_THERE
    )


# Node and containers


def test_a_node_with_another_name_is_found_by_its_label(tmp_path: Path) -> None:
    missing = f'Error from server (NotFound): nodes "{NODE}" not found\n'
    named = {**NODE_OBJECT, "metadata": {"name": "worker-3"}}
    facts = kubernetes(Cluster(tmp_path, node=missing, nodes=[named]), tmp_path)
    assert facts.node == "worker-3"


def test_peermem_that_waits_for_the_nic_driver(tmp_path: Path) -> None:
    host = Cluster(tmp_path, pods=[POD, CRASHING], logs=WAITING)
    facts = kubernetes(host, tmp_path)
    assert not isinstance(facts.containers, Unknown)
    by_name = {container.name: container for container in facts.containers}
    peermem = by_name["nvidia-peermem-ctr"]
    assert (peermem.pod, peermem.ready, len(peermem.log)) == ("nvidia-driver-daemonset-x7k2p", False, 20)
    assert message_of(peermem) is ContainerMessage.WAITING_FOR_DRIVERS
    assert by_name["nvidia-driver-ctr"].log == ()
    assert (by_name["mofed-container"].reason, by_name["mofed-container"].restarts) == (
        "CrashLoopBackOff",
        12,
    )
    logged = [argv for argv in host.asked if argv[1] == "logs"]
    assert len(logged) == 2  # not of containers that are ready or have completed


def test_a_healthy_peermem_container_waits_for_nothing(tmp_path: Path) -> None:
    facts = kubernetes(Cluster(tmp_path), tmp_path)
    assert not isinstance(facts.containers, Unknown)
    assert not [message_of(container) for container in facts.containers if not container.ready]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("successfully loaded nvidia-peermem module, now waiting for signal", "PEERMEM_LOADED"),
        ("failed to load nvidia-peermem module", "PEERMEM_FAILED"),
        ("Could not unload NVIDIA driver kernel modules, driver is in use", "DRIVER_IN_USE"),
        ("waiting for the mlx5_core and ib_umad kernel modules to be loaded", "WAITING_FOR_NVLINK"),
        ("failed to unload nvidia_peermem module", "PEERMEM_IN_USE"),
    ],
)
def test_known_lines_of_logs(line: str, message: str) -> None:
    container = ContainerState("pod", "ctr", False, 0, "", (WAITING.split("\n")[0], line, "other"))
    assert message_of(container) is ContainerMessage[message]


# Refusals


def test_a_forbidden_list_needs_permission_and_the_rest_is_read(tmp_path: Path) -> None:
    facts = kubernetes(Cluster(tmp_path, clusterpolicies=FORBIDDEN), tmp_path)
    refused = unknown(facts.gpu_operator)
    assert refused.reason is Reason.NEEDS_PERMISSION
    assert str(refused) == "needs permission: to read clusterpolicies.nvidia.com in the cluster"
    assert facts.node == NODE


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("error: You must be logged in to the server (Unauthorized)", Reason.NEEDS_PERMISSION),
        ("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout", Reason.TIMED_OUT),
        ("The connection to the server api.example:6443 was refused", Reason.IO_ERROR),
        ("The connection to the server localhost:8080 was refused", Reason.NOT_THERE),
        ("", Reason.IO_ERROR),
    ],
)
def test_a_server_that_does_not_answer_is_asked_once(tmp_path: Path, stderr: str, reason: Reason) -> None:
    host = Cluster(tmp_path, node=f"{stderr}\n")
    facts = kubernetes(host, tmp_path)
    assert unknown(facts.gpu_operator).reason is reason
    assert unknown(facts.containers).reason is reason
    assert len(host.asked) == 1


def test_a_stuck_kubectl_is_run_once(tmp_path: Path) -> None:
    host = Cluster(tmp_path, node=Unknown(Reason.TIMED_OUT, "kubectl", "still running after 5 s"))
    assert unknown(kubernetes(host, tmp_path).network_operator).reason is Reason.TIMED_OUT
    assert len(host.asked) == 1


def test_every_request_only_reads_within_three_seconds(tmp_path: Path) -> None:
    host = Cluster(tmp_path, pods=[POD, CRASHING], logs=WAITING, nicclusterpolicies=[NIC_POLICY])
    kubernetes(host, tmp_path)
    assert {argv[1] for argv in host.asked} == {"get", "logs"}
    assert all("--request-timeout=3s" in argv for argv in host.asked)
    assert len(host.asked) <= 12


def test_a_host_name_that_is_no_name_of_an_object_is_not_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "/var/lib/kubelet/x", "")
    host = Cluster(tmp_path)
    facts = probe(host, "--all")
    assert isinstance(facts, KubernetesFacts)
    assert unknown(facts.node).reason is Reason.MALFORMED
    assert not any("--all" in argv for argv in host.asked)


# What is kept


def test_variables_and_annotations_are_dropped() -> None:
    kept = kept_fields(json.dumps({"items": [POLICY, POD, NODE_OBJECT]}))
    assert "hunter2" not in kept
    assert "last-applied" not in kept
    assert "secret-team" not in kept
    assert objects(kept) == objects(json.dumps({"items": [POLICY, POD, NODE_OBJECT]}))


@pytest.mark.parametrize("text", ["", "[", "[]", "3", "null", "Error from server"])
def test_an_answer_that_is_no_object(text: str) -> None:
    assert unknown(objects(text)).reason is Reason.MALFORMED
    assert kept_fields(text) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["items", "metadata", "spec", "status", "name", "labels", "driver", "rdma"])
            | st.sampled_from(["containerStatuses", "state", "waiting", "reason", "enabled", "allocatable"])
            | st.text(max_size=8),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@pytest.mark.slow
@given(JSON)
def test_any_json_of_any_shape(value: Any) -> None:
    class Odd(Cluster):
        def names(self, path: str) -> Maybe[tuple[str, ...]]:
            return () if path == "/run/nvidia/validations" else Unknown(Reason.NOT_THERE, path)

    host = Odd(Path("/nonexistent"), node=value, pods=value, clusterpolicies=value, nicclusterpolicies=value)
    assert isinstance(probe(host, NODE), KubernetesFacts)


@given(st.text())
def test_any_error_and_any_log(text: str) -> None:
    failure, _ = parse_failure(text, "pods")
    assert str(failure).isprintable()
    assert all(line.isprintable() and len(line) <= 400 for line in parse_log(text))
