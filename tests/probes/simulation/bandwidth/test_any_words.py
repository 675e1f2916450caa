"""Whatever a command's words are, what a simulated node plays ends or can be ended, and fails plainly."""

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.facts.system.tool_names import TEST_TOOLS
from tests.probes.simulation.bandwidth.node import Node
from tests.support.failures import explain

KNOWN = [
    *("-d", "mlx5_0", "-a", "-s", "-n", "-q", "-D", "-b", "-x", "-p", "18515", "--run_infinitely"),
    *("127.0.0.1", "--use_cuda=0", "--use_cuda_dmabuf", "-t", "-j", "-g", "-e", "-c", "8", "2", "peer"),
    *("ssh", "env", "A=b", "numactl", "--cpunodebind=1", "stdbuf", "-oL", "99999999999999999999", "--"),
]
WORDS = st.one_of(st.sampled_from(KNOWN), st.text(max_size=8))


@given(st.sampled_from(TEST_TOOLS), st.lists(WORDS, max_size=6), st.lists(WORDS, max_size=3))
@settings(max_examples=60)
def test_nothing_crashes(tool: str, words: list[str], before: list[str]) -> None:
    node = Node("pcie-l40s")
    run = node.begin([*before, tool, *words])
    node.wait(30, run, step=5.0)
    run.test.end(15)
    node.wait(5, run, step=1.0)
    assert run.status is not None
    assert all(line.replace("\t", "").isprintable() for line in run.lines)
    if run.status:
        assert explain(run.lines, run.status) is not None
