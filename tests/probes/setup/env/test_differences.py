"""What of a job's file is compared with the recommendation, by the kind of the file."""

import pytest

from probes.nccl.variables.catalogue import NEWEST
from probes.setup.env.advice import STATED, Advice, Setting
from probes.setup.env.assignments import FileKind
from probes.setup.env.differences import Difference, differences

ADVICE = Advice(
    NEWEST,
    STATED,
    settings=(
        Setting("NCCL_IB_GID_INDEX", "3", "RoCE v2 is there"),
        Setting("NCCL_IB_TC", "106", "the switch says so"),
        Setting("UCX_TLS", "rc", "not NCCL's"),
    ),
)
POD = """
kind: Pod
spec:
  containers:
    - name: a
      env:
        - {name: NCCL_IB_GID_INDEX, value: "1"}
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NCCL_IB_GID_INDEX=1\n", FileKind.SHELL),
        ("#SBATCH -N 2\nexport NCCL_IB_GID_INDEX=1\nsrun train\n", FileKind.SBATCH),
        ("NCCL_IB_GID_INDEX=1\nNCCL_IB_GID_INDEX=3\n", FileKind.NCCL_CONF),
        (POD, FileKind.POD),
    ],
)
def test_a_value_of_each_kind_of_file_is_compared_and_what_the_file_does_not_set_is_too(
    text: str, kind: FileKind
) -> None:
    assert differences(text, kind, ADVICE).differing == (
        Difference("NCCL_IB_GID_INDEX", "1", "3", "RoCE v2 is there"),
        Difference("NCCL_IB_TC", None, "106", "the switch says so"),
    )


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("NCCL_IB_HCA=$NICS", "known only when the job runs"),
        ("NCCL_NET_PLUGIN=/tmp/libnccl-net.so", "names a file"),
        ("NCCL_TOPO_DUMP_FILE=topo.xml", "no effect on bandwidth"),
        ("NCCL_COMM_ID=10.0.0.1:4000", "needs the whole job"),
        ("NCCL_IB_HCAS=mlx5_0", "did you mean NCCL_IB_HCA?"),
        (f"NCCL_IB_HCA={'mlx5_0,' * 60}", "too long"),
        ("NCCL_SHM_DISABLE=1", "the test sets it itself"),
    ],
)
def test_what_no_test_can_compare_is_named_with_the_reason(setting: str, why: str) -> None:
    found = differences(f"export {setting}\n", FileKind.SHELL, Advice(NEWEST, STATED), ("NCCL_SHM_DISABLE",))
    assert found.differing == ()
    assert [each.name for each in found.not_compared] == [setting.partition("=")[0]]
    assert why in found.not_compared[0].reason


def test_what_only_a_plugin_reads_is_compared() -> None:
    found = differences("NCCL_OFI_PROTOCOL=RDMA\n", FileKind.SHELL, Advice(NEWEST, STATED))
    assert [each.name for each in found.differing] == ["NCCL_OFI_PROTOCOL"]


def test_a_value_as_recommended_is_no_difference() -> None:
    found = differences("export NCCL_IB_GID_INDEX=3 NCCL_IB_TC=106\n", FileKind.SHELL, ADVICE)
    assert found.differing == ()


def test_files_of_other_variables_have_nothing_to_compare() -> None:
    text = "export UCX_TLS=tcp PATH=/bin OMP_NUM_THREADS=4\n"
    assert differences(text, FileKind.SHELL, Advice(NEWEST, STATED)).differing == ()
