"""What is found in files, and on which line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.platform import Cloud, Provider
from probes.setup.env.assignments import FileKind
from probes.setup.env.file_kind import kind_of
from probes.setup.env.lint import FileReport, lint
from probes.snapshot.examination import Examination
from tests.probes.setup.env.test_clouds import with_efa
from tests.support.doctor import examination_of
from tests.support.env_nodes import NO_CLOUD, changed

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
    return [(problem.line, problem.severity, problem.title) for problem in report.problems]


def has(report: FileReport, line: int, severity: Severity, words: str) -> bool:
    return any(row[:2] == (line, severity) and words in row[2] for row in said(report))


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
    assert (report.exit_status, report.count, report.kind) == (0, 2, FileKind.SBATCH)
    assert report.dynamic == 1  # NCCL_DEBUG_FILE


@pytest.mark.slow
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
        ("export NCCL_IB_HCA=mthca", ERROR, "matches no NIC"),
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
        ("ssh node2 'NCCL_IB_DISABLE=1 python train.py'", ERROR, "makes a job use TCP"),
        ("OUT=$(NCCL_IB_DISABLE=1 ./a.out)", ERROR, "makes a job use TCP"),
        ("ARGS=(-x NCCL_NET=Socket)", ERROR, "makes a job use TCP"),
        ('FLAGS="-x NCCL_DEBUG=INFO -x NCCL_NET=Socket"', ERROR, "makes a job use TCP"),
        ("export NCCL_P2P_LEVEL=NODE", WARNING, "silently ignores NCCL_P2P_LEVEL=NODE"),
        ("export NCCL_SOCKET_IFNAME=^docker0", WARNING, "lets NCCL choose lo"),
        ("export NCCL_CUMEM_ENABLE=0", NOTE, "disables NVLink between nodes"),
        ("export NCCL_DEBUG=RED", WARNING, "“RED” is not one of VERSION, WARN"),
        ("export NCCL_ALGO=Rong", WARNING, "“Rong” is not one of Tree, Ring"),
        ("export NCCL_PROTO='^LL128;allreduce:LL1'", WARNING, "“LL1” is not one of LL, LL128, Simple"),
        ("export NCCL_FOOBAR=1", NOTE, "NCCL does not read NCCL_FOOBAR"),
        ("export UCX_TLS=rc,sm", WARNING, "UCX_TLS excludes"),
        ("export NVSHMEM_HCA_LIST=mlx5_0", WARNING, "no effect without NVSHMEM_ENABLE_NIC_PE_MAPPING=1"),
    ],
)
def test_a_wrong_line_is_named(line: str, severity: Severity, words: str) -> None:
    report = judged(f"#!/bin/bash\n{line}\n")
    assert has(report, 2, severity, words), said(report)
    assert report.exit_status == {ERROR: 2, WARNING: 1, NOTE: 0}[severity]


def test_a_fix_says_where_the_variable_is_set() -> None:
    (problem,) = judged("#!/bin/bash\nexport NCCL_NET_GDR_LEVEL=LOC\n").problems
    assert problem.fix == "Remove NCCL_NET_GDR_LEVEL from line 2"


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_DEBUG=INFO\nexport NCCL_DEBUG\n",
        "set -a\nNCCL_DEBUG=INFO\nset +a\n",
        "declare -x NCCL_DEBUG=INFO\n",
        "export NCCL_DEBUG=info NCCL_ALGO=^ring,tree NCCL_DEBUG_SUBSYS=init,net\n",
        # "Enable these debug logs with NCCL_DEBUG=INFO (or TRACE) and NCCL_DEBUG_SUBSYS=DIAG (or ALL)", the
        # user guide's page of diagnostics, as RCCL's documentation has it
        "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=DIAG\n",
        "export NCCL_ALGO='ring,collnetdirect;allreduce:tree'\n",
        "export NCCL_IB_DISABLE=1\nexport NCCL_IB_DISABLE=0x0\n",
    ],
)
def test_these_scripts_are_ok(text: str) -> None:
    assert judged(text).exit_status == 0, said(judged(text))


@pytest.mark.parametrize(
    "text",
    [
        'echo "NCCL_IB_HCA = ${NCCL_IB_HCA}"\n',
        'echo "If it hangs, set NCCL_IB_DISABLE=1 and run again"\n',
        'echo "export NCCL_IB_DISABLE=1\nNCCL_NET=Socket"\n',
        "printf '%s' 'NCCL_IB_DISABLE=1 python train.py'; logger NCCL_NET=Socket\n",
        "echo -e NCCL_IB_DISABLE=1\n",
        "cat > /tmp/note <<EOF\nexport NCCL_IB_DISABLE=1\nEOF\n",
        "cat <<-'EOF'\n\tNCCL_NET=Socket ./a.out\n\tEOF\n",
        "echo done  # NCCL_IB_DISABLE=1\n",
        "export NCCL_IB_DISABLE=1\nunset NCCL_IB_DISABLE\n",
        "NCCL_VERSION=2.27.7 NCCL_HOME=/opt/nccl\nexport NCCL_TESTS_SPLIT_MASK=0x7 UCX_DIR=/opt/ucx\n",
        "make NCCL_HOME=/opt/nccl\n",
        "",
    ],
)
def test_a_script_that_sets_nothing_is_not_called_ok(text: str) -> None:
    report = judged(text)
    assert (report.exit_status, report.count, said(report)) == (3, 0, [])


def test_a_value_that_only_the_job_knows_is_not_checked() -> None:
    report = judged("export NCCL_IB_HCA=$NICS NCCL_SOCKET_IFNAME=`first_nic`\n")
    assert (report.exit_status, report.count, report.dynamic) == (3, 0, 2)


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("NCCL_NET_GDR_LEVEL=LOC srun good\nNCCL_NET_GDR_LEVEL=PXB srun better\n", 1),
        ("export NCCL_NET_GDR_LEVEL=LOC\nsrun a\nexport NCCL_NET_GDR_LEVEL=PXB\nsrun b\n", 1),
        ("export NCCL_NET_GDR_LEVEL=LOC; srun a; unset NCCL_NET_GDR_LEVEL; srun b\n", 1),
        ("if a; then\nexport NCCL_NET_GDR_LEVEL=LOC\nelse\nexport NCCL_NET_GDR_LEVEL=PXB\nfi\n", 2),
        ("mpirun -x NCCL_NET_GDR_LEVEL=LOC a\nmpirun -x NCCL_NET_GDR_LEVEL=PXB b\n", 1),
        ("bash -c '\nexport NCCL_NET_GDR_LEVEL=LOC\nsrun a'\nexport NCCL_NET_GDR_LEVEL=PXB\n", 2),
        ("ssh a bash -s <<EOF\nexport NCCL_NET_GDR_LEVEL=LOC\nEOF\nexport NCCL_NET_GDR_LEVEL=PXB\n", 2),
    ],
)
def test_every_value_that_a_command_gets_is_judged(script: str, line: int) -> None:
    report = judged(script)
    assert has(report, line, ERROR, "disables GPUDirect RDMA"), said(report)
    assert report.exit_status == 2


def test_variables_of_one_command_do_not_reach_the_next() -> None:
    script = "NCCL_IB_GID_INDEX=3 srun a\nNCCL_IB_ADDR_FAMILY=AF_INET6 srun b\n"
    assert not has(judged(script), 2, WARNING, "no effect, because NCCL_IB_GID_INDEX is set")
    both = "export NCCL_IB_GID_INDEX=3\nNCCL_IB_ADDR_FAMILY=AF_INET6 srun b\n"
    assert has(judged(both), 2, WARNING, "no effect, because NCCL_IB_GID_INDEX is set")


def test_a_script_with_too_many_environments_says_so() -> None:
    script = "".join(f"NCCL_IB_TC={number} srun a\n" for number in range(40))
    assert has(judged(script), 0, WARNING, "Only the first 32 different environments")


def test_ucx_is_a_note_where_mpi_only_starts_nccl_tests() -> None:
    report = judged("mpirun -x UCX_TLS=tcp -x NCCL_DEBUG=INFO ./all_reduce_perf -b 8\n")
    assert has(report, 1, NOTE, "UCX_TLS excludes")
    assert report.exit_status == 0
    assert judged("mpirun -x UCX_TLS=tcp ./a.out\n").exit_status == 1


def test_each_line_of_a_continued_command_has_its_own_number() -> None:
    assert has(judged("\nmpirun \\\n -x NCCL_NET=Socket \\\n ./a.out\n"), 3, ERROR, "use TCP")


def test_export_none_keeps_variables_from_the_tasks() -> None:
    script = "#!/bin/bash\n#SBATCH --export=NONE\nexport NCCL_DEBUG=INFO\nsrun ./a.out\n"
    assert has(judged(script), 2, WARNING, "srun does not pass this script's variables")
    assert judged(script.replace("srun", "unset SLURM_EXPORT_ENV\nsrun")).exit_status == 0


def test_the_node_decides_about_distances() -> None:
    line = "export NCCL_NET_GDR_LEVEL=PIX\n"
    assert has(judged(line, node="hgx-b200"), 1, WARNING, "lower than the distance")
    assert judged(line).exit_status == 0


def test_the_default_level_costs_nothing_on_any_node() -> None:
    report = judged("export NCCL_NET_GDR_LEVEL=PXB\n", node="pcie-l40s", nccl="2.27.7")
    assert has(report, 1, NOTE, "is the default")
    assert report.exit_status == 0


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


def test_adaptive_routing_is_judged_by_the_link_layer() -> None:
    off = "export NCCL_IB_ADAPTIVE_ROUTING=0\n"
    assert has(judged(off), 1, WARNING, "keeps a job from adaptive routing")
    assert not has(judged(off, node="bare-roce"), 1, WARNING, "keeps a job from adaptive routing")


def test_the_version_decides_whether_pxb_turns_off_c2c() -> None:
    line = "export NCCL_NET_GDR_LEVEL=PXB\n"
    assert has(judged(line, node="gb200", nccl="2.29.2"), 1, WARNING, "lower than the distance")
    assert judged(line, node="gb200", nccl="2.27.7").exit_status == 0


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
    assert has(report, 1, NOTE, "FI_PROVIDER is needed only before aws-ofi-nccl 1.6")
    text_of_efa = "export NCCL_MIN_NCHANNELS=8 FI_EFA_USE_DEVICE_RDMA=1 RDMAV_FORK_SAFE=1\n"
    report = judged(text_of_efa, node=with_efa())
    assert has(report, 1, WARNING, "NCCL_MIN_NCHANNELS can slow down EFA")
    assert has(report, 1, NOTE, "FI_EFA_USE_DEVICE_RDMA is not needed")
    assert has(report, 1, WARNING, "RDMAV_FORK_SAFE can break jobs")
    report = judged(text, node="cloud-vm", cloud=Cloud(Provider.GOOGLE, ""))
    assert has(report, 1, WARNING, "NCCL_IB_HCA is set on top of Google's set_nccl_env.sh")
    assert not any(problem.variable == "NCCL_DEBUG" for problem in report.problems)


def test_scripts_that_source_the_script_of_gib_are_right() -> None:
    script = (
        "source /usr/local/gib/scripts/set_nccl_env.sh\n"
        "export NCCL_NET=gIB NCCL_SOCKET_IFNAME=enp0s19 NCCL_TESTS_SPLIT_MASK=0x7\n"
        "export NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE=/usr/local/gib/configs/a\n"
    )
    google = Cloud(Provider.GOOGLE, "")
    assert not any(
        problem.severity is not NOTE for problem in judged(script, node="cloud-vm", cloud=google).problems
    ), said(judged(script, node="cloud-vm", cloud=google))
    report = judged(f"{script}export NCCL_IB_TC=52\n", node="cloud-vm", cloud=google)
    assert has(report, 4, WARNING, "NCCL_IB_TC is set on top of")


def test_a_node_without_gpus_does_not_judge_names_of_nics() -> None:
    examination = examination_of("hgx-h100")
    login = replace(
        examination, node=replace(examination.node, gpus=Unknown(Reason.NOT_THERE, "nvml", "no driver"))
    )
    report = judged("export NCCL_IB_HCA=mthca NCCL_NET=Socket\n", node=login)
    assert not any(problem.variable == "NCCL_IB_HCA" for problem in report.problems)
    assert has(report, 1, ERROR, "use TCP")
    assert "GPUs are unknown" in report.not_compared


def test_the_environment_overrides_nccl_conf() -> None:
    conf = "NCCL_DEBUG=WARN\nNCCL_IB_DISABLE=1\n"
    node = changed("hgx-h100", lambda tree: tree.add("/etc/nccl.conf", conf))
    report = judged("export NCCL_DEBUG=INFO\n", node=node)
    assert said(report) == [(1, NOTE, "NCCL_DEBUG overrides WARN from /etc/nccl.conf")]


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
    assert (report.count, report.dynamic) == (4, 1)
    assert judged(POD[: POD.index("      containers")], FileKind.POD).exit_status == 0


def test_helm_and_compose_maps_are_read() -> None:
    values = "env:\n  NCCL_NET: Socket\n"
    assert has(judged(values, FileKind.POD), 2, ERROR, "use TCP")
    compose = "services:\n  train:\n    image: a\n    environment: {}\n    env:\n    - NCCL_NET=Socket\n"
    assert has(judged(compose, FileKind.POD), 6, ERROR, "use TCP")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("data:\n  run.sh: |\n    mpirun \\\n      -x NCCL_NET=Socket ./a.out\n", 4),
        (
            "data:\n  job.yaml: |-\n    name: a\n    image: b\n    env:\n"
            "    - name: NCCL_NET\n      value: Socket\n",
            6,
        ),
        ("services:\n  a:\n    image: b\n    environment:\n    - NCCL_NET=Socket\n", 5),
        ("services:\n  a:\n    image: b\n    environment:\n      NCCL_NET: Socket\n", 5),
        ("services:\n  a:\n    image: b\n    command: bash -c 'NCCL_NET=Socket ./a'\n", 4),
        ("worker:\n  extraEnv:\n  - name: NCCL_NET\n    value: Socket\n", 3),
        ("nccl:\n  NCCL_NET: Socket\n", 2),
        ("jobs:\n  a:\n    steps:\n    - name: train\n      run: NCCL_NET=Socket ./a\n", 5),
        ("jobs:\n  a:\n    steps:\n    - run: |\n        cd a\n        export NCCL_NET=Socket\n", 6),
        ("runcmd:\n- NCCL_NET=Socket ./a\n", 2),
        ("write_files:\n- path: /etc/nccl.conf\n  content: |\n    # a\n    NCCL_NET=Socket\n", 5),
        ("- destination: /etc/environment\n  content: |\n    A=1\n    NCCL_NET=Socket\n", 4),
        ("data:\n  nccl.conf: |\n    NCCL_NET=Socket\n", 3),
        ("a:\n  image: b\n  command: [env, NCCL_NET=Socket, ./a]\n", 3),
        ("a:\n  image: b\n  args:\n  - mpirun -x NCCL_NET=Socket ./a\n", 4),
        ("a:\n  image: b\n  command: [bash, -c]\n  args: ['NCCL_NET=Socket ./a']\n", 4),
    ],
)
def test_all_places_where_yaml_sets_variables_are_read(text: str, line: int) -> None:
    report = judged(text, FileKind.POD)
    assert has(report, line, ERROR, "makes a job use TCP"), said(report)
    assert (report.count, len(report.problems)) == (1, 1)


def test_prose_in_yaml_sets_nothing() -> None:
    text = "description: |\n  Set\n  NCCL_NET=Socket\nrun: echo NCCL_NET=Socket\n"
    assert (judged(text, FileKind.POD).exit_status, said(judged(text, FileKind.POD))) == (3, [])


def test_the_variables_of_a_container_reach_its_commands() -> None:
    text = (
        "name: a\nimage: b\nenv:\n- {name: NCCL_IB_GID_INDEX, value: '3'}\n"
        "command: [bash, -c, 'NCCL_IB_ADDR_FAMILY=AF_INET6 ./a']\n"
    )
    assert has(judged(text, FileKind.POD), 5, WARNING, "no effect, because NCCL_IB_GID_INDEX is set")


@pytest.mark.parametrize("text", ["a: [", "\tkey: value"])
def test_text_that_is_no_yaml_is_one_error(text: str) -> None:
    report = judged(text, FileKind.POD)
    assert report.exit_status == 2
    assert ["not valid YAML" in title for _, _, title in said(report)] == [True]


def test_a_template_is_called_a_template() -> None:
    report = judged("env:\n{{- range .Values.env }}\n- name: a\n{{ end }}\n", FileKind.POD)
    assert report.exit_status == 3
    assert [title for _, _, title in said(report)] == [
        "The file is a template, not YAML, so it was not checked"
    ]


def test_windows_line_endings_are_an_error() -> None:
    report = judged("export NCCL_DEBUG=INFO\r\n")
    assert has(report, 1, ERROR, "Windows line endings")


def test_a_file_with_too_many_variables_is_not_called_ok() -> None:
    text = "\n".join(f"export NCCL_X{number}=1" for number in range(600))
    assert has(judged(text), 0, WARNING, "only the first 512 are checked")
    of_commands = "".join(f"NCCL_IB_TC={number} srun a\n" for number in range(600))
    assert has(judged(of_commands), 0, WARNING, "only the first 512 are checked")


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


GPU_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train%(annotations)s}
spec:
  hostNetwork: %(host)s
  containers:
  - name: train
    image: pytorch
    securityContext: {capabilities: {add: [%(capabilities)s]}}
    resources:
      limits: {nvidia.com/gpu: %(gpus)s, cpu: 8%(devices)s}
    volumeMounts: [{name: shm, mountPath: /dev/shm}]
  volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""
BARE = {"annotations": "", "host": "false", "capabilities": "", "gpus": "8", "devices": ""}


def pod(**changes: str) -> str:
    return GPU_POD % (BARE | changes)


def test_a_pod_with_gpus_needs_a_device_locked_memory_and_on_roce_a_network() -> None:
    report = judged(pod(), FileKind.POD, "bare-roce")
    assert [row[1] for row in said(report)] == [WARNING] * 3
    assert has(report, 7, WARNING, "requests GPUs but no RDMA device")
    assert has(report, 7, WARNING, "has no IPC_LOCK capability")
    assert has(report, 7, WARNING, "neither the host network nor an additional one")
    assert report.exit_status == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": ", rdma/hca: 1", "capabilities": "IPC_LOCK", "host": "true"},
        {
            "devices": ", nvidia.com/hostdev: 1",
            "capabilities": "IPC_LOCK",
            "annotations": ", annotations: {k8s.v1.cni.cncf.io/networks: rails}",
        },
        {"gpus": "0"},
    ],
)
def test_a_pod_with_everything_or_without_gpus_is_ok(changes: dict[str, str]) -> None:
    assert said(judged(pod(**changes), FileKind.POD, "bare-roce")) == []


def test_infiniband_needs_no_network_in_the_pod() -> None:
    report = judged(pod(devices=", rdma/hca: 1", capabilities="IPC_LOCK"), FileKind.POD)
    assert (said(report), report.exit_status) == ([], 0)


def test_a_pod_with_one_gpu_of_many_gets_notes() -> None:
    """It may run on this node alone."""
    report = judged(pod(gpus="1"), FileKind.POD)
    assert {row[1] for row in said(report)} == {NOTE}
    assert report.exit_status == 0


def test_a_pod_on_efa_needs_efa() -> None:
    report = judged(pod(), FileKind.POD, "aws-p5")
    assert ["vpc.amazonaws.com/efa" in problem.fix for problem in report.problems] == [True]
