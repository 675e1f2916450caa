"""What is found in files, and on which line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.cloud import Cloud, Provider
from probes.queries.finding import Severity
from probes.setup.environment.assignments import FileKind
from probes.setup.environment.lint import FileReport, kind_of, lint
from probes.snapshot.examination import Examination
from tests.probes.checks.doctor import examination_of
from tests.probes.setup.environment.nodes import NO_CLOUD, changed
from tests.probes.setup.environment.test_clouds import with_efa

ERROR, WARNING, NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE


def judged(
    text: str,
    kind: FileKind = FileKind.SHELL,
    node: str | Examination = "hgx-h100",
    cloud: Maybe[Cloud] = NO_CLOUD,
    nccl: str = "",
) -> FileReport:
    examination = examination_of(node) if isinstance(node, str) else node
    return lint(text, kind, examination, cloud, nccl)


def said(report: FileReport) -> list[tuple[int, Severity, str]]:
    return [(one.line, one.severity, one.title) for one in report.problems]


def has(report: FileReport, line: int, severity: Severity, words: str) -> bool:
    return any(one[:2] == (line, severity) and words in one[2] for one in said(report))


GOOD = """\
#!/bin/bash
#SBATCH --nodes=2
# NCCL_IB_DISABLE=1 was needed once
export NCCL_DEBUG=INFO NCCL_DEBUG_FILE=$HOME/nccl.%h.log
export NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_5,mlx5_6,mlx5_7,mlx5_8
srun python train.py
"""


def test_a_good_script_is_ok() -> None:
    report = judged(GOOD)
    assert said(report) == []
    assert (report.exit_status, report.count, report.kind) == (0, 3, FileKind.SBATCH)


@pytest.mark.parametrize(
    ("line", "severity", "words"),
    [
        ("export NCCL_IB_DISABLE=1", ERROR, "makes a job use TCP"),
        ("NCCL_IB_DISABLE=1 srun python train.py", ERROR, "makes a job use TCP"),
        ("mpirun -x NCCL_NET=Socket python train.py", ERROR, "makes a job use TCP"),
        ("mpirun -genv NCCL_NET Socket python train.py", ERROR, "makes a job use TCP"),
        ("srun --export=ALL,NCCL_IB_DISABLE=1 python train.py", ERROR, "makes a job use TCP"),
        ("docker run -e NCCL_IB_DISABLE=1 image", ERROR, "makes a job use TCP"),
        ("bash -c 'NCCL_IB_DISABLE=1 python train.py'", ERROR, "makes a job use TCP"),
        ("setenv NCCL_IB_DISABLE 1", ERROR, "makes a job use TCP"),
        ("if true; then export NCCL_IB_DISABLE=1; fi", ERROR, "makes a job use TCP"),
        ("export NCCL_NET_GDR_LEVEL=LOC", ERROR, "disables GPUDirect RDMA"),
        ("export NCCL_NET_GDR_LEVEL=NODE", WARNING, "silently ignores"),
        ("export NCCL_NET_GDR_LEVEL=3", NOTE, "is a number"),
        ("export NCCL_IB_HCA=mthca", ERROR, "names no NIC"),
        ("export NCCL_IB_HCA==mlx5_0,mlx5_77", WARNING, "does not have"),
        ("export NCCL_IB_HCAS=mlx5_0", WARNING, "did you mean NCCL_IB_HCA?"),
        ("export NCCL_IB_CUDA_SUPPORT=1", WARNING, "no effect since NCCL 2.4"),
        ("export NCCL_IB_RETRY_CNT=many", WARNING, "is not a number"),
        ("export NCCL_IB_RETRY_CNT=8", WARNING, "outside 0 to 7"),
        ("export NCCL_IB_QPS_PER_CONNECTION=1", NOTE, "is the default"),
        ("export NCCL_PROTO=Simple", NOTE, "is for debugging"),
        ("export NCCL_SOCKET_FAMILY=ipv4", WARNING, "is not one of AF_INET, AF_INET6"),
        ("NCCL_DEBUG=INFO", WARNING, "not exported"),
        ("declare NCCL_DEBUG=INFO", WARNING, "not exported"),
        ("export NCCL_DEBUG = INFO", ERROR, "Spaces around"),
        ("NCCL_DEBUG = INFO", ERROR, "Spaces around"),
        ("export UCX_TLS=rc,sm", WARNING, "UCX_TLS excludes"),
        ("export NVSHMEM_HCA_LIST=mlx5_0", WARNING, "no effect without NVSHMEM_ENABLE_NIC_PE_MAPPING=1"),
    ],
)
def test_a_wrong_line_is_named(line: str, severity: Severity, words: str) -> None:
    report = judged(f"#!/bin/bash\n{line}\n")
    assert has(report, 2, severity, words), said(report)
    assert report.exit_status == {ERROR: 2, WARNING: 1, NOTE: 0}[severity]


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_DEBUG=INFO\nexport NCCL_DEBUG\n",
        "set -a\nNCCL_DEBUG=INFO\nset +a\n",
        "declare -x NCCL_DEBUG=INFO\n",
        "export NCCL_IB_DISABLE=1\nunset NCCL_IB_DISABLE\n",
        "export NCCL_IB_DISABLE=1\nexport NCCL_IB_DISABLE=0x0\n",
        "export NCCL_IB_HCA=$NICS NCCL_SOCKET_IFNAME=`first_nic`\n",
        "echo done  # NCCL_IB_DISABLE=1\n",
        "",
    ],
)
def test_these_scripts_are_ok(text: str) -> None:
    assert judged(text).exit_status == 0, said(judged(text))


def test_lines_that_are_continued_have_the_number_of_the_first() -> None:
    assert has(judged("\nmpirun \\\n -x NCCL_NET=Socket \\\n ./a.out\n"), 2, ERROR, "use TCP")


def test_export_none_keeps_variables_from_the_tasks() -> None:
    script = "#!/bin/bash\n#SBATCH --export=NONE\nexport NCCL_DEBUG=INFO\nsrun ./a.out\n"
    assert has(judged(script), 2, WARNING, "srun passes no variables")
    assert judged(script.replace("srun", "unset SLURM_EXPORT_ENV\nsrun")).exit_status == 0


def test_the_node_decides_about_distances() -> None:
    line = "export NCCL_NET_GDR_LEVEL=PXB\n"
    assert has(judged(line, node="pcie-l40s"), 1, WARNING, "lower than the distance")
    assert judged(line).exit_status == 0


def test_what_the_node_needs_and_the_file_does_not_set_is_a_note() -> None:
    report = judged("export NCCL_DEBUG=INFO\n", node="pcie-l40s", nccl="2.20")
    assert said(report) == [(0, NOTE, "This node also needs NCCL_IB_GID_INDEX=3")]
    assert said(judged("export NCCL_IB_GID_INDEX=3\n", node="pcie-l40s", nccl="2.20")) == []


def test_a_level_that_has_to_be_measured_is_not_needed() -> None:
    assert said(judged("export NCCL_DEBUG=INFO\n", node="pcie-l40s")) == []


def test_the_version_decides_what_exists() -> None:
    line = "export NCCL_IB_ADDR_FAMILY=AF_INET6\n"
    assert has(judged(line, nccl="2.20"), 1, WARNING, "no effect before NCCL 2.21")
    assert judged(line, nccl="2.21").exit_status == 0
    split = "export NCCL_IB_SPLIT_DATA_ON_QPS=1\n"
    assert has(judged(split, nccl="2.19"), 1, NOTE, "is the default")
    assert not has(judged(split, nccl="2.20"), 1, NOTE, "is the default")


def test_variables_that_disable_each_other() -> None:
    both = "export NCCL_IB_GID_INDEX=3 NCCL_IB_ADDR_FAMILY=AF_INET6\n"
    assert has(judged(both), 1, WARNING, "no effect, because NCCL_IB_GID_INDEX is set")
    nvlink = "export NCCL_MNNVL_ENABLE=1\nexport NCCL_CUMEM_ENABLE=0\n"
    assert has(judged(nvlink), 2, ERROR, "needs cuMem")


def test_nothing_is_stacked_on_efa_and_gib() -> None:
    text = "export NCCL_IB_HCA=mlx5 NCCL_PROTO=Simple FI_PROVIDER=efa NCCL_DEBUG=INFO\n"
    report = judged(text, node=with_efa())
    assert has(report, 1, WARNING, "NCCL_IB_HCA has no effect on EFA")
    assert has(report, 1, WARNING, "NCCL_PROTO overrides what the aws-ofi-nccl plugin sets")
    assert has(report, 1, WARNING, "FI_PROVIDER overrides")
    report = judged(text, node="cloud-vm", cloud=Cloud(Provider.GOOGLE, ""))
    assert has(report, 1, WARNING, "NCCL_IB_HCA is set on top of Google's set_nccl_env.sh")
    assert not any(one.variable == "NCCL_DEBUG" for one in report.problems)


def test_a_node_without_gpus_does_not_judge_names_of_nics() -> None:
    examination = examination_of("hgx-h100")
    login = replace(
        examination, node=replace(examination.node, gpus=Unknown(Reason.NOT_THERE, "nvml", "no driver"))
    )
    report = judged("export NCCL_IB_HCA=mthca NCCL_NET=Socket\n", node=login)
    assert not any(one.variable == "NCCL_IB_HCA" for one in report.problems)
    assert has(report, 1, ERROR, "use TCP")
    assert "GPUs are unknown" in report.not_compared


def test_the_environment_overrides_nccl_conf() -> None:
    conf = "NCCL_DEBUG=WARN\nNCCL_IB_DISABLE=1\n"
    node = changed("hgx-h100", lambda tree: tree.add("/etc/nccl.conf", conf))
    report = judged("export NCCL_DEBUG=INFO\n", node=node)
    assert said(report) == [(1, NOTE, "NCCL_DEBUG overrides WARN of /etc/nccl.conf")]


CONF = """\
# comment
NCCL_IB_HCA==mlx5_0,mlx5_77
NCCL_DEBUG = INFO
export NCCL_NET=IB
NCCL_SOCKET_IFNAME="eno1"
NCCL_IB_SL=1 # lossless
UCX_TLS=rc
NCCL_IB_HCA=mlx5_3
"""


def test_nccl_conf_is_read_as_nccl_reads_it() -> None:
    report = judged(CONF, FileKind.NCCL_CONF)
    assert has(report, 2, WARNING, "does not have")  # the first line of a name counts
    assert has(report, 3, ERROR, "NCCL ignores this line")
    assert has(report, 4, ERROR, "NCCL ignores this line")
    assert has(report, 5, ERROR, "quotation marks")
    assert has(report, 6, ERROR, "comment is part of the value")
    assert has(report, 7, WARNING, "UCX_TLS has no effect in nccl.conf")
    assert has(report, 8, WARNING, "already set on line 2")
    assert judged("# all\nNCCL_DEBUG=WARN\n\n", FileKind.NCCL_CONF).exit_status == 0


POD = """\
apiVersion: kubeflow.org/v1
kind: MPIJob
spec:
  template:
    spec:
      initContainers:
      - {name: init, image: a, env: [{name: NCCL_DEBUG, value: INFO}]}
      containers:
      - name: trainer
        image: b
        envFrom: [{configMapRef: {name: more}}]
        env:
        - name: NCCL_IB_DISABLE
          value: 1
        - name: NCCL_IB_HCA
          valueFrom: {fieldRef: {fieldPath: x}}
        - name: NCCL_NET_GDR_LEVEL
          value: "NODE"
        - name: NCCL_NET_GDR_LEVEL
          value: "LOC"
        args:
        - |
          export NCCL_NET=Socket
          exec python train.py
"""


def test_every_container_of_a_manifest_is_judged() -> None:
    report = judged(POD, FileKind.POD)
    assert has(report, 13, ERROR, "(container trainer)")
    assert has(report, 14, ERROR, "is not a string")
    assert has(report, 19, WARNING, "already set on line 17")
    assert has(report, 19, ERROR, "disables GPUDirect RDMA")  # the last entry counts
    assert has(report, 23, ERROR, "NCCL_NET=Socket")
    assert has(report, 11, NOTE, "envFrom")
    assert report.count == 5
    assert judged(POD[: POD.index("      containers")], FileKind.POD).exit_status == 0


def test_helm_and_compose_maps_are_read() -> None:
    values = "env:\n  NCCL_NET: Socket\n"
    assert has(judged(values, FileKind.POD), 2, ERROR, "use TCP")
    compose = "services:\n  train:\n    image: a\n    environment: {}\n    env:\n    - NCCL_NET=Socket\n"
    assert has(judged(compose, FileKind.POD), 6, ERROR, "use TCP")


@pytest.mark.parametrize("text", ["{{ .Values.env }}\na: b", "a: [", "\tkey: value", "a: *unknown"])
def test_text_that_is_no_yaml_is_one_error(text: str) -> None:
    report = judged(text, FileKind.POD)
    assert report.exit_status in (0, 2)
    assert all("not valid YAML" in title for _, _, title in said(report))


def test_windows_line_endings_are_an_error() -> None:
    report = judged("export NCCL_DEBUG=INFO\r\n")
    assert has(report, 1, ERROR, "Windows line endings")


def test_a_file_with_too_many_variables_is_not_called_ok() -> None:
    text = "\n".join(f"export NCCL_X{number}=1" for number in range(600))
    assert has(judged(text), 0, WARNING, "only the first 512 are checked")


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("/etc/nccl.conf", "", FileKind.NCCL_CONF),
        ("/home/a/.nccl.conf", "", FileKind.NCCL_CONF),
        ("pod.yaml", "", FileKind.POD),
        ("-", "apiVersion: v1\nkind: Pod\n", FileKind.POD),
        ("run.sh", "#!/bin/bash\n#SBATCH -N 2\n", FileKind.SBATCH),
        ("run.sh", "#!/bin/bash\n", FileKind.SHELL),
    ],
)
def test_the_kind_of_a_file_is_seen(name: str, text: str, kind: FileKind) -> None:
    assert kind_of(name, text) is kind
