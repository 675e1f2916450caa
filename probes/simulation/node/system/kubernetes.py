"""A simulated node in a Kubernetes cluster: kubelet's traces, the operators' markers, and kubectl's answers.

The objects have more fields than gdrtop reads, as in a real cluster: NVIDIA gpu-operator v26.7.0 and Mellanox
network-operator v26.7.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from probes.base.data_files import read_text
from probes.facts.system.kubernetes import VALIDATIONS
from probes.host.protocol import CommandOutput
from probes.simulation.node.model.description import ClusterDescription
from probes.simulation.node.model.tree import Tree

_GPU_NAMESPACE, _NIC_NAMESPACE = "gpu-operator", "nvidia-network-operator"
_DRIVER_POD, _OFED_POD = "nvidia-driver-daemonset-sim01", "mofed-ubuntu22.04-51a01a7e-ds-sim02"
PEERMEM, DRIVER, OFED = "nvidia-peermem-ctr", "nvidia-driver-ctr", "mofed-container"
_MOFED_READY = "/run/mellanox/drivers/.driver-ready"
# Never shown or recorded: gdrtop drops variables before anything else reads the answer.
_SECRET = [{"name": "HTTPS_PROXY", "value": "http://operator:simulated-secret@proxy.example:3128"}]


def add_kubernetes(tree: Tree, cluster: ClusterDescription) -> None:
    """Add the node's part of the cluster; another one replaces it."""
    tree.add("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\n")
    tree.add(f"/usr/bin/{cluster.tool}", b"\x7fELF")
    for path in (VALIDATIONS, _MOFED_READY):
        if tree.is_there(path):
            tree.remove(path)
    for name in _markers(cluster):
        tree.add(f"{VALIDATIONS}/{name}", "")
    if cluster.ofed and OFED not in cluster.waiting:
        tree.add(_MOFED_READY, "")
    tree.commands[cluster.tool] = lambda argv, seconds: _kubectl(tree, cluster, argv)


def _markers(cluster: ClusterDescription) -> Iterator[str]:
    if DRIVER in cluster.waiting:
        return
    yield from ("driver-ready", "toolkit-ready", "plugin-ready", "cuda-ready")
    if cluster.driver:
        yield ".driver-ctr-ready"
    if cluster.rdma and not {PEERMEM, OFED} & {*cluster.waiting}:
        yield "nvidia-peermem-ready"


def _kubectl(tree: Tree, cluster: ClusterDescription, argv: tuple[str, ...]) -> str | CommandOutput:
    """Answer `get KIND` and `logs POD`, as JSON and as text."""
    verb, kind, name = (*argv[1:4], "", "", "")[:3]
    if verb == "logs":
        container = _value(argv, "--container")
        return "".join(f"{line}\n" for line in cluster.log) if (container,) == cluster.waiting[:1] else ""
    if kind in ("node", "nodes"):
        node = _object("node", tree, cluster)
        if kind == "node" and name != tree.description.hostname:
            return CommandOutput(argv, 1, "", f'Error from server (NotFound): nodes "{name}" not found\n')
        if tree.drained_for is not None:
            node["spec"] = {"unschedulable": True}
        return json.dumps(node if kind == "node" else _list([node]))
    if kind == "clusterpolicies.nvidia.com":
        return json.dumps(_list([_object("cluster policy", tree, cluster)]))
    if kind == "nicclusterpolicies.mellanox.com" and cluster.ofed:
        return json.dumps(_list([_object("NIC cluster policy", tree, cluster)]))
    if kind == "pods":
        return json.dumps(_list(list(_pods(tree, cluster, argv))))
    error = f'error: the server doesn\'t have a resource type "{kind.partition(".")[0]}"\n'
    return CommandOutput(argv, 1, "", error)


def _value(argv: tuple[str, ...], option: str) -> str:
    """Return the word after an option; "" without one."""
    return next((value for word, value in pairwise(argv) if word == option), "")


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}


def _object(name: str, tree: Tree, cluster: ClusterDescription) -> Any:
    """Return an object of kubernetes.json for this node; a text such as "$gpus" stands for a value."""
    waits_for_ofed, waits_for_driver = (name in cluster.waiting for name in (OFED, DRIVER))
    values = {
        "hostname": tree.description.hostname,
        "kernel": tree.description.kernel,
        "env": _SECRET,
        "gpus": "0" if waits_for_driver else str(len(tree.gpus)),
        "rdma_devices": "0" if waits_for_ofed else "63",
        "deploys_driver": "true" if cluster.driver else "pre-installed",
        "installs_driver": bool(cluster.driver),
        "driver": cluster.driver or tree.description.driver.version,
        "rdma": cluster.rdma,
        "use_host_mofed": cluster.use_host_mofed,
        "waits_for_mofed": "true" if waits_for_ofed else "false",
        "state": "notReady" if cluster.waiting else "ready",
        "ofed": cluster.ofed,
        "ofed_state": "notReady" if waits_for_ofed else "ready",
    }

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item) for item in value]
        return values[value[1:]] if isinstance(value, str) and value.startswith("$") else value

    return filled(json.loads(read_text(__package__, "kubernetes.json"))[name])


def _pods(tree: Tree, cluster: ClusterDescription, argv: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    label = _value(argv, "--selector")
    if label == "app.kubernetes.io/component=nvidia-driver" and cluster.driver:
        containers = [DRIVER, PEERMEM] if cluster.rdma else [DRIVER]
        yield _pod(tree, _DRIVER_POD, _GPU_NAMESPACE, containers, cluster)
    if label == "nvidia.com/ofed-driver" and cluster.ofed:
        yield _pod(tree, _OFED_POD, _NIC_NAMESPACE, [OFED], cluster)


def _pod(
    tree: Tree, name: str, namespace: str, containers: list[str], cluster: ClusterDescription
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": tree.description.hostname,
            "containers": [{"name": container, "env": _SECRET} for container in containers],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [_status(container, cluster) for container in containers],
        },
    }


def _status(name: str, cluster: ClusterDescription) -> dict[str, Any]:
    common = {"name": name, "ready": name not in cluster.waiting}
    if cluster.reason and name in cluster.waiting[:1]:
        waiting = {"waiting": {"reason": cluster.reason, "message": "back-off 5m0s restarting"}}
        terminated = {"terminated": {"exitCode": 1, "reason": "Error"}}
        return common | {"restartCount": 7, "state": waiting, "lastState": terminated}
    running = {"running": {"startedAt": "2026-11-22T03:00:00Z"}}
    return common | {"restartCount": 0, "state": running, "lastState": {}}
