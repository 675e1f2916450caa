"""Text of any kind: gdrtop sees what it is, and never fails."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.setup.env.assignments import FileKind
from probes.setup.env.file_kind import recognize
from probes.setup.env.lint import judge_text
from tests.probes.setup.env.test_hostile_files import FILES
from tests.support.doctor import examination_of

POD = "spec:\n  containers:\n  - name: a\n    resources: {limits: {nvidia.com/gpu: 8}}\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NCCL_DEBUG=INFO\n# a comment\nNCCL_IB_TC=106\n", FileKind.NCCL_CONF),
        ("export NCCL_DEBUG=INFO\n", FileKind.SHELL),
        ("#!/bin/bash\n#SBATCH -N 2\nexport NCCL_DEBUG=INFO\n", FileKind.SBATCH),
        ("docker run --gpus all image\n", FileKind.SHELL),
        ("FROM pytorch\nENV NCCL_DEBUG=INFO\n", FileKind.SHELL),
        ("helm install g nvidia/gpu-operator --set driver.rdma.enabled=true\n", FileKind.SHELL),
        (POD, FileKind.POD),
        ("services:\n  a: {gpus: all}\n", FileKind.POD),
        ("{{ if a }}\n" + POD + "{{ end }}\n", FileKind.POD),
        ('{"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": {"driver": {}}}', FileKind.POD),
        ("apiVersion: v1\nkind: Pod\nspec: [\n", FileKind.POD),
        ("driver:\n  rdma: {enabled: true}\n", FileKind.POD),
        (
            "#!/bin/sh\ncat <<E | kubectl apply -f -\n" + POD.replace("spec", "kind: Pod\nspec") + "E\n",
            FileKind.SHELL,
        ),
        ("# How to\n```yaml\nkind: Pod\n```\n- [ ] NCCL_NET: x\n", None),
        ("a: b\nc: d\n", None),
        ("node1:1:1 [0] NCCL INFO NCCL_DEBUG=INFO\nexport NCCL_NET=Socket\n", None),
        ("ls: cannot access /dev/infiniband: No such file or directory\n", None),
        ("", None),
    ],
)
def test_a_text_shows_what_it_is(text: str, kind: FileKind | None) -> None:
    assert recognize(text) is kind
    report = judge_text(text)
    assert (None if report is None else report.kind) is kind


def test_what_env_prints_is_exported() -> None:
    report = judge_text("HOME=/root\nNCCL_DEBUG=INFO\nPATH=/bin\nUCX_LOG_LEVEL=warn\n")
    assert report is not None
    assert not any("not exported" in problem.title for problem in report.problems)


@pytest.mark.parametrize("text", ["NCCL_CUMEM_ENABLE=0", "It fails with\nNCCL_CUMEM_ENABLE=0\non all nodes"])
def test_a_variable_alone_is_of_no_script(text: str) -> None:
    report = judge_text(text)
    assert report is not None
    assert [problem.title for problem in report.problems] == [
        "NCCL_CUMEM_ENABLE=0 disables NVLink between nodes (MNNVL)"
    ]


def test_without_a_node_nothing_is_compared() -> None:
    report = judge_text("export NCCL_IB_HCA=mlx5_99 NCCL_IB_DISABLE=1\n")
    assert report is not None
    assert report.not_compared == "no node was read"
    assert [problem.title for problem in report.problems] == ["NCCL_IB_DISABLE=1 makes a job use TCP"]


def test_objects_in_here_documents_have_the_lines_of_the_script() -> None:
    pod = POD.replace("spec", "kind: Pod\nspec")
    report = judge_text(f"export TOKEN=<YOURS>\nexport NCCL_NET=Socket\nkubectl apply -f - <<E\n{pod}E\n")
    assert report is not None
    assert {problem.line for problem in report.problems} == {2, 7}


def test_with_a_node_names_are_compared() -> None:
    report = judge_text("export NCCL_IB_HCA=mlx5_99\n", examination_of("hgx-h100"))
    assert report is not None
    assert "NCCL_IB_HCA matches no NIC on this node" in [problem.title for problem in report.problems]


PARTS = st.sampled_from(
    (
        *("docker run ", "--gpus all ", "-v ", "/dev/infiniband:", "$X ", "${X[@]} ", "X=(", ")", "\n", "="),
        *("services:\n", "  a:\n", "    gpus: all\n", "spec:\n", "containers:\n", "- name: a\n", "  "),
        *("kind: NicClusterPolicy\n", "kind: ClusterPolicy\n", "apiVersion: nvidia.com/v1\n", "{{", "}}"),
        *('"configList": [', '{"resourceName": "a"}', "]", "<<: *a\n", "&a ", "*a ", "config: '{", "}'"),
        *("apptainer exec --nv -C ", "helm install ", "--set ", "driver.rdma.enabled=true,", "${A:-", "}"),
        *(
            "NCCL_IB_HCA=",
            "^mlx5_0,^a",
            "kind: ConfigMap\ndata:\n  a: '",
            "\0",
            "\x1b[31m",
            "driver:\n",
            "{%",
        ),
    )
)
HOSTILE = st.lists(PARTS, max_size=40).map("".join)


@settings(max_examples=60)
@given(st.one_of(FILES, HOSTILE))
@example("a: &a\n  <<: *a\n  services: *a\n")
@example("services: &s {a: *s}\n")
@example("spec: &s {containers: [*s], volumes: *s}\n")
def test_any_text_is_judged_or_none(text: str) -> None:
    report = judge_text(text, examination_of("hgx-h100"))
    for problem in () if report is None else report.problems:
        assert problem.line >= 0
        assert f"{problem.title}{problem.detail}{problem.fix}{problem.variable}".isprintable()


@pytest.mark.parametrize(
    "part",
    [
        *("{{", "${A:-", "{% ", "$(", "X=(", "docker run ", "A=1\n", "OPTIONS+=$OPTIONS\n", "- {a: b}\n"),
        *("NCCL_IB_HCA=${A:-b} ", "helm install --set a.b=c,d=e ", "apptainer exec --bind a "),
    ],
)
def test_long_text_takes_no_long_time(part: str) -> None:
    """The suite's own time limit ends a parser whose time grows faster than the text."""
    judge_text("export NCCL_DEBUG=INFO\n" + part * 20_000, examination_of("hgx-h100"))
