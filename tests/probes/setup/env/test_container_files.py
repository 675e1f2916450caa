"""Containers with GPUs in every syntax: what they can open, and what they miss."""

from __future__ import annotations

import pytest

from probes.base.evidence import Severity
from probes.setup.env.assignments import FileKind
from probes.setup.env.lint import FileReport
from tests.probes.setup.env.test_lint import NOTE, WARNING, has, judged, pod, said

NO_DEVICE = "--gpus all --network host --ipc host --ulimit memlock=-1"
FULL = f"{NO_DEVICE} --device /dev/infiniband"


def warned(report: FileReport) -> list[str]:
    return [problem.title for problem in report.problems if problem.severity is not NOTE]


HOST_PATH = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  hostNetwork: true
  containers:
  - name: train
    image: pytorch
    securityContext: {privileged: %(privileged)s, capabilities: {add: [IPC_LOCK]}}
    resources: {limits: {nvidia.com/gpu: 8%(devices)s}}
    volumeMounts: [{name: shm, mountPath: /dev/shm}, {name: %(volume)s, mountPath: /dev/infiniband}]
  volumes:
  - {name: shm, emptyDir: {medium: Memory}}
  - {name: ib, hostPath: {path: /dev/infiniband}}
"""


def host_path(privileged: str = "false", devices: str = "", volume: str = "ib") -> FileReport:
    text = HOST_PATH % {"privileged": privileged, "devices": devices, "volume": volume}
    return judged(text, FileKind.POD)


def test_a_host_path_is_no_right_to_open_a_device() -> None:
    report = host_path()
    assert warned(report) == ["Container train mounts /dev/infiniband but cannot open its devices"]
    assert "rdma/NAME" in report.problems[0].fix
    assert report.exit_status == 1


def test_a_privileged_container_may_open_what_it_mounts() -> None:
    assert said(host_path(privileged="true")) == []


def test_a_volume_that_another_container_mounts_is_none_of_this_one() -> None:
    report = host_path(volume="other")
    assert warned(report) == ["Container train requests GPUs but no RDMA device"]
    assert "no container mounts it" in report.problems[0].detail


@pytest.mark.parametrize(
    ("device", "words"),
    [("rdma/hca", "did not allocate"), ("vpc.amazonaws.com/efa", "fi_info ends with -61")],
)
def test_a_host_path_beside_a_device_plugin_is_a_fault(device: str, words: str) -> None:
    report = host_path(devices=f", {device}: 1")
    assert warned(report) == [f"Container train mounts /dev/infiniband beside {device}"]
    assert words in report.problems[0].detail


@pytest.mark.parametrize(
    "device",
    [
        *("rdma/hca_shared_devices_a", "nvidia.com/hostdev", "nvidia.com/mlnxnics", "nvidia.com/rdma-vf"),
        *("nvidia.com/sriov-rdma-vf", "openshift.io/mlxrdma", "mellanox.com/mlx5_vf", "aliyun/erdma"),
        *(
            "amd.com/vnic",
            "vpc.amazonaws.com/efa",
            "networking.gke.io.networks/rdma-0",
            "intel.com/sriov_rdma",
        ),
    ],
)
def test_names_of_device_plugins_are_rdma_devices(device: str) -> None:
    report = judged(pod(devices=f", {device}: 1", capabilities="IPC_LOCK", host="true"), FileKind.POD)
    assert said(report) == []


@pytest.mark.parametrize("device", ["nvidia.com/gpumem", "amd.com/gpu", "nvidia.com/pgpu", "hugepages-2Mi"])
def test_other_resources_are_no_rdma_devices(device: str) -> None:
    report = judged(pod(devices=f", {device}: 1", capabilities="IPC_LOCK", host="true"), FileKind.POD)
    assert warned(report) == ["Container train requests GPUs but no RDMA device"]


@pytest.mark.parametrize("device", ["example.com/licence", "intel.com/mine"])
def test_an_unknown_resource_is_neither_ok_nor_a_fault(device: str) -> None:
    report = judged(pod(devices=f", {device}: 1", capabilities="IPC_LOCK", host="true"), FileKind.POD)
    assert has(report, 7, NOTE, f"requests {device}; whether that is an RDMA device is unknown")
    assert report.exit_status == 0


CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: nics}
spec: {spec: {devices: {requests: [{name: a, exactly: {deviceClassName: %s}}]}}}
---
apiVersion: v1
kind: Pod
spec:
  hostNetwork: true
  hostIPC: true
  resourceClaims: [{name: c, resourceClaimTemplateName: nics}]
  containers:
  - name: train
    securityContext: {capabilities: {add: [IPC_LOCK]}}
    resources: {limits: {nvidia.com/gpu: 8}, claims: [{name: c}]}
"""


def test_a_claim_counts_by_its_device_class() -> None:
    assert said(judged(CLAIM % "mrdma.google.com", FileKind.POD)) == []
    imex = judged(CLAIM % "compute-domain-default-channel.nvidia.com", FileKind.POD)
    assert warned(imex) == ["Container train requests GPUs but no RDMA device"]
    assert has(judged(CLAIM % "mine", FileKind.POD), 13, NOTE, "whether that is an RDMA device is unknown")


def test_nvidia_s_toolkit_passes_in_the_devices_if_it_is_asked() -> None:
    text = f"docker run {NO_DEVICE} -e NVIDIA_MOFED=enabled image"
    assert said(judged(text)) == []


def test_shared_memory_of_a_pod_is_small_by_default() -> None:
    text = pod(devices=", rdma/hca: 1", capabilities="IPC_LOCK").replace(
        "mountPath: /dev/shm", "mountPath: /x"
    )
    report = judged(text, FileKind.POD)
    assert [row[1:] for row in said(report)] == [
        (NOTE, "Container train has only the default 64 MiB of shared memory")
    ]


def test_docker_run_without_anything_for_rdma() -> None:
    report = judged(
        "#!/bin/sh\ndocker run --rm --gpus all \\\n  -e NCCL_IB_HCA==mlx5_0 image train --device x\n"
    )
    assert has(report, 2, WARNING, "docker run requests GPUs but no RDMA device")
    assert has(report, 2, WARNING, "does not raise the limit of locked memory")
    assert has(report, 2, NOTE, "only the default 64 MiB")
    assert report.exit_status == 1


@pytest.mark.parametrize(
    "command",
    [
        f"docker run {FULL} image",
        f"sudo podman run -it --rm {FULL.replace('--ulimit memlock=-1', '--cap-add=IPC_LOCK')} image",
        "nerdctl run -itd --gpus=all --privileged --net=host --shm-size=16g image",
        "docker container run --gpus all --privileged --network=host --shm-size 16G image",
        "docker run --rm alpine",
        f'docker run {FULL} "$IMAGE" --option',
        f'OPTIONS="{FULL}"\ndocker run --rm $OPTIONS image',
        f"OPTIONS=({FULL})\nOPTIONS+=(--rm)\ndocker run ${{OPTIONS[@]}} image",
        'IB=""\nif [ -d /dev/infiniband ]; then IB=--device=/dev/infiniband; fi\n'
        f"docker run {NO_DEVICE} $IB image",
        f"docker run {NO_DEVICE} -v /dev:/dev --device-cgroup-rule='c 231:* rwm' image",
        "docker compose run --gpus all image",
        'echo "docker run --gpus all image"',
        "apptainer exec --nv image.sif python train.py",
        "srun --container-image=image --gpus=8 python train.py",
    ],
)
def test_command_lines_with_everything_or_without_gpus_are_ok(command: str) -> None:
    assert said(judged(command, node="bare-roce")) == []


def test_a_mount_in_docker_is_no_right_to_open_a_device() -> None:
    report = judged(f"docker run {NO_DEVICE} -v /dev/infiniband:/dev/infiniband image")
    assert warned(report) == ["docker run mounts /dev/infiniband but cannot open its devices"]
    assert "--device=/dev/infiniband" in report.problems[0].fix


def test_options_in_a_variable_without_a_value_are_unknown() -> None:
    assert [row[1:] for row in said(judged('docker run --gpus all "${MORE[@]}" image'))] == [
        (NOTE, "docker run has options that are not in this file, so its RDMA devices were not checked")
    ]
    report = judged('docker run --gpus all -e NCCL_IB_TC=106 "$IMAGE" --device=/dev/infiniband')
    assert has(report, 1, WARNING, "requests GPUs but no RDMA device")


def test_apptainer_with_a_clean_environment() -> None:
    report = judged("export NCCL_DEBUG=INFO\napptainer exec --nv --cleanenv image.sif ./a\n")
    assert warned(report) == ["apptainer exec does not pass NCCL_DEBUG to the container"]


def test_a_rootless_container_has_no_device_cgroup() -> None:
    command = f"podman run {NO_DEVICE} -v /dev/infiniband:/dev/infiniband image"
    assert [row[1] for row in said(judged(command))] == [NOTE]
    assert [row[1] for row in said(judged(f"sudo {command}"))] == [WARNING]


def test_a_container_with_its_own_network_on_roce() -> None:
    report = judged(
        f"docker run {FULL.replace('--network host', '-e NCCL_IB_TC=106')} image", node="bare-roce"
    )
    assert has(report, 1, WARNING, "docker run has its own network")


def test_exported_variables_do_not_reach_a_container() -> None:
    text = f"export NCCL_DEBUG=INFO NCCL_IB_TC=106\ndocker run {FULL} -e NCCL_DEBUG image\n"
    report = judged(text)
    assert has(report, 2, WARNING, "docker run does not pass NCCL_IB_TC to the container")
    assert not has(report, 2, WARNING, "NCCL_DEBUG")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("apptainer exec --nv --contain image.sif ./a", "hides the RDMA devices (--contain)"),
        ("singularity run -C --nv image.sif", "hides the RDMA devices (-C)"),
        (
            "export MELLANOX_VISIBLE_DEVICES=none\nsrun --container-image=a ./a",
            "MELLANOX_VISIBLE_DEVICES=none",
        ),
        ("ENROOT_RESTRICT_DEV=y enroot start image ./a", "ENROOT_RESTRICT_DEV=y"),
    ],
)
def test_options_that_hide_the_devices_of_the_host(command: str, words: str) -> None:
    report = judged(command)
    assert [words in title for title in warned(report)] == [True]


def test_apptainer_with_a_bind_of_the_devices() -> None:
    assert said(judged("apptainer exec --nv --contain --bind /dev/infiniband image.sif ./a")) == []


COMPOSE = """\
x-gpu: &gpu
  deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
services:
  db: {image: postgres}
  train:
    <<: *gpu
    image: pytorch
    environment:
      NCCL_DEBUG:
      NCCL_IB_HCA: =mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_5,mlx5_6,mlx5_7,mlx5_8
"""
RIGHTS = """\
    network_mode: host
    ipc: host
    ulimits: {memlock: {soft: -1, hard: -1}}
    devices: ["/dev/infiniband:/dev/infiniband"]
"""


def test_services_of_compose_are_judged_as_pods_are() -> None:
    report = judged(COMPOSE, FileKind.POD)
    assert warned(report) == [
        "Service train requests GPUs but no RDMA device",
        "Service train does not raise the limit of locked memory",
    ]
    assert (report.count, report.dynamic) == (1, 1)  # NCCL_DEBUG is the caller's
    assert said(judged(COMPOSE + RIGHTS, FileKind.POD)) == []


@pytest.mark.parametrize(
    "gpus", ["gpus: all", "gpus: [{count: 8}]", "runtime: nvidia", "devices: [nvidia.com/gpu=all]"]
)
def test_every_way_of_compose_to_ask_for_gpus(gpus: str) -> None:
    report = judged(f"services:\n  a:\n    image: b\n    {gpus}\n    cap_add: [IPC_LOCK]\n", FileKind.POD)
    assert warned(report) == ["Service a requests GPUs but no RDMA device"]


def test_a_command_in_a_workflow_is_read() -> None:
    text = "steps:\n- run: |\n    docker run --gpus all -e NCCL_IB_TC=106 image\n"
    assert has(judged(text, FileKind.POD), 3, WARNING, "requests GPUs but no RDMA device")


@pytest.mark.parametrize("null", ["null", "~", ""])
def test_a_null_sets_nothing(null: str) -> None:
    report = judged(
        f"env_vars:\n  NCCL_DEBUG: {null}\n  NCCL_IB_TIMEOUT: {null}\n  NCCL_IB_TC: 106\n", FileKind.POD
    )
    assert (said(report), report.count, report.dynamic) == ([], 1, 0)


@pytest.mark.parametrize(
    "line",
    [
        *("export NCCL_IB_DISABLE=${NCCL_IB_DISABLE:-1}", "export NCCL_IB_DISABLE=${NCCL_IB_DISABLE-1}"),
        *('export NCCL_IB_DISABLE="${NCCL_IB_DISABLE:=1}"', "export NCCL_IB_DISABLE=${A:-${B:-1}}"),
        *("srun --export=ALL,NCCL_IB_DISABLE=${X:-1} a", 'set -a; : "${NCCL_IB_DISABLE:=1}"'),
    ],
)
def test_a_default_is_judged_as_a_value(line: str) -> None:
    report = judged(line)
    assert [problem.severity for problem in report.problems] == [Severity.CRITICAL]
    assert "unless the caller sets" in report.problems[0].detail


def test_a_default_of_a_variable_that_the_script_sets_is_that_value() -> None:
    assert said(judged("DISABLE=0\nexport NCCL_IB_DISABLE=${DISABLE:-1}")) == said(
        judged("\nexport NCCL_IB_DISABLE=0")
    )


HELM = """\
spec:
  containers:
  - name: {{ .Values.name }}
    image: "{{ .Values.image }}"
    {{- if .Values.debug }}
    env:
    - {name: NCCL_IB_DISABLE, value: "1"}
    - {name: NCCL_DEBUG, value: {{ .Values.level | quote }}}
    {{- end }}
    resources: {limits: {nvidia.com/gpu: {{ .Values.gpus }}}}
"""


def test_what_can_be_read_of_a_template_is_judged() -> None:
    report = judged(HELM, FileKind.POD)
    assert has(report, 7, Severity.CRITICAL, "makes a job use TCP")
    assert "The file is a template, so what it fills in was not checked" in [row[2] for row in said(report)]
    assert report.dynamic == 1


@pytest.mark.parametrize("placeholder", ["${RESOURCES}", "$RESOURCES", "@RESOURCES@", "..."])
def test_a_placeholder_on_a_line_of_its_own_is_a_template(placeholder: str) -> None:
    text = f"spec:\n- name: a\n  env:\n\n    - {{name: NCCL_NET, value: Socket}}\n  {placeholder}\n"
    report = judged(text, FileKind.POD)
    assert has(report, 5, Severity.CRITICAL, "makes a job use TCP")
    assert not any("not valid YAML" in row[2] for row in said(report))


def test_a_template_that_is_no_yaml_even_then_is_read_line_by_line() -> None:
    text = "{% for a in b %}\n  key: [\n- name: NCCL_NET\n  value: Socket\nNCCL_IB_DISABLE: 1\n{% endfor %}\n"
    report = judged(text, FileKind.POD)
    assert has(report, 3, Severity.CRITICAL, "makes a job use TCP")
    assert has(report, 5, Severity.CRITICAL, "makes a job use TCP")


def test_of_a_text_that_is_no_yaml_the_variables_are_judged() -> None:
    """A prompt or a cut-off line was pasted with it."""
    report = judged("env:\n- name: NCCL_NET\n  value: Socket\nroot@node:/# cat [\n", FileKind.POD)
    assert has(report, 2, Severity.CRITICAL, "makes a job use TCP")
    assert any("not valid YAML" in row[2] for row in said(report))


def test_what_a_template_may_fill_in_is_not_called_missing() -> None:
    text = pod().replace("metadata:", "extra: {{ .Values.extra }}\nmetadata:")
    assert not any("no RDMA device" in row[2] for row in said(judged(text, FileKind.POD)))
    branches = (
        "env:\n{{- if .a }}\n- {name: NCCL_IB_TC, value: '1'}\n"
        "{{- else }}\n- {name: NCCL_IB_TC, value: '2'}\n{{- end }}\n"
    )
    assert not any("already set" in row[2] for row in said(judged(branches, FileKind.POD)))
