"""Each failure of simulated perftest follows from the node, and is told for what it is."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.samples import About
from probes.bandwidth.tools.failures import Failure
from probes.bandwidth.tools.perftest_command import PerftestSettings, loopback
from probes.simulation.faults.catalogue import FAULTS
from tests.probes.simulation.bandwidth.node import Node, Pair, Run, both, run_pair, settings_on
from tests.support.tiers import number_of, share, usual

# Usual ones that a test of bandwidth notices.
FAULTS_OF_TESTS = {
    "no-gdr-path",
    "libcuda-link-missing",
    "acs-on",
    "port-down",
    "roce-gid-wrong",
    "perftest-without-dmabuf",
}
GENERIC = ("the test exited with status", "the program was not found")


def failure_of(run: Run) -> Failure:
    assert run.status not in (None, 0), run.lines
    failure = run.failure()
    assert failure is not None
    assert not failure.text.startswith(GENERIC), run.lines
    return failure


CAUSES: list[tuple[str, int | None, dict[str, object], str]] = [
    ("hgx-h100+peermem-not-loaded", 0, {"dmabuf": False}, "nvidia_peermem does not handle"),
    ("cloud-vm", 0, {"dmabuf": False}, "nvidia_peermem does not handle"),
    ("dgx-a100", 0, {"dmabuf": True}, "open kernel modules"),
    ("pcie-l40s+dmabuf-kernel-too-old", 0, {"dmabuf": True}, "cannot register DMA-BUF"),
    ("hgx-h100+dmabuf-nic-driver-lacks-support", 5, {"dmabuf": True, "nic": "mlx5_6"}, "cannot register"),
    ("hgx-h100+rdma-core-without-dmabuf", 0, {"dmabuf": True}, "cannot register DMA-BUF"),
    ("gb200+p2p-topology-refused", 0, {}, "errno 524"),
    ("hgx-h100+p2p-topology-refused-override", 0, {"dmabuf": True}, "errno 524"),
    ("hgx-h100+confidential-computing-on", 0, {"dmabuf": True}, "open kernel modules"),
    ("hgx-h100+fabric-manager-down", 0, {}, "Fabric Manager does not run"),
    (
        "dgx-a100+driver-library-mismatch",
        0,
        {},
        "libcuda and the loaded kernel module are of different versions",
    ),
    (
        "hgx-h100+nvidia-uvm-not-loaded",
        0,
        {"dmabuf": True},
        "CUDA failed to start (error 999: unknown error)",
    ),
    ("hgx-h100+libcuda-link-missing", 0, {}, "libcuda.so was not found"),
    ("hgx-h100+xid-79-fell-off-bus", 5, {}, "CUDA does not see a GPU at this PCI address"),
    ("hgx-h100+dev-nvidia-missing", 1, {}, "CUDA does not see a GPU at this PCI address"),
    ("hgx-h100+memlock-shell", None, {"size_bytes": 8 << 20}, "ulimit -l unlimited"),
    ("hgx-h100", None, {"device": "mlx5_77"}, "there is no RDMA device mlx5_77"),
    ("hgx-h100+libibverbs-missing", None, {}, "this environment has no RDMA device"),
    ("hgx-h100+dev-infiniband-missing", None, {}, "could not be opened"),
    ("hgx-h100+dev-infiniband-denied", None, {"device": "mlx5_1"}, "could not be opened"),
    ("hgx-h100+port-down", None, {"device": "mlx5_1"}, "port 1 of the NIC is Down, not active"),
    ("hgx-h100+no-subnet-manager", None, {"device": "mlx5_5"}, "port 1 of the NIC is Init"),
    ("pcie-l40s", 0, {"gid_index": 9}, "GID index"),
    ("pcie-l40s+roce-gid-wrong-namespace", None, {"gid_index": None}, "GID index"),
    ("hgx-h100+acs-on,iommu-translated", 0, {}, "ACS redirection"),
]
# A cause of each kind: the way to GPU memory, CUDA, memory limits, the NIC, its port.
USUAL_CAUSES = {
    "hgx-h100+peermem-not-loaded",
    "dgx-a100",
    "pcie-l40s+dmabuf-kernel-too-old",
    "hgx-h100+libcuda-link-missing",
    "hgx-h100+memlock-shell",
    "hgx-h100+dev-infiniband-denied",
    "hgx-h100+port-down",
    "pcie-l40s",
}


@pytest.mark.parametrize(
    ("name", "gpu", "changes", "told"),
    [case if case[0] in USUAL_CAUSES else pytest.param(*case, marks=pytest.mark.slow) for case in CAUSES],
)
def test_the_cause_is_told(name: str, gpu: int | None, changes: dict[str, object], told: str) -> None:
    def settings(node: Node) -> PerftestSettings:
        asked = {key: changes[key] for key in ("dmabuf", "nic") if key in changes}
        rest = {key: value for key, value in changes.items() if key not in asked}
        return settings_on(node, gpu, **asked, **rest)  # type: ignore[arg-type]

    pair = run_pair(name, settings)
    assert told in failure_of(pair.client).text
    # The server fails for the same cause, or says that its client did.
    assert pair.server.status == 1 or any("Waiting for client" in line for line in pair.server.lines)


@pytest.mark.parametrize("name", usual(FAULTS, FAULTS_OF_TESTS))
@pytest.mark.slow
def test_with_every_fault_a_test_ends_and_says_why(name: str) -> None:
    node = Node(f"{FAULTS[name].on}+{name}")
    for gpu in share((0, None), turn=number_of(name), parts=2):
        try:
            settings = settings_on(node, gpu)
        except AssertionError:  # there is nothing to test with, and the groundwork says so
            continue
        commands = loopback(settings, node.tools())
        if isinstance(commands, Refused):
            continue
        server = node.begin(commands[0].argv)
        node.wait(0.3, server, step=0.1)
        client = node.begin(commands[1].argv)
        node.finish(server, client, step=0.25)
        if client.status == 0:
            assert server.status == 0
            (sample,) = client.samples()
            assert 0 < (sample.gbps or 0) < 800
            assert About.DEVICE in client.facts()
        else:
            failure_of(client)


def test_one_end_without_memory_ends_the_other() -> None:
    """The server's GPU memory is refused, the client asks for host memory."""
    pair = run_pair(
        "hgx-h100+peermem-not-loaded",
        lambda node: settings_on(node, 0, dmabuf=False),
        lambda settings: replace(settings, gpu=None),
    )
    assert "nvidia_peermem" in failure_of(pair.client).text
    assert "peer exited" in failure_of(pair.server).text


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("perftest-without-cuda", "built without CUDA"),
        ("perftest-without-dmabuf", "this perftest is built without DMA-BUF"),
    ],
)
def test_a_build_that_lacks_an_option(fault: str, told: str) -> None:
    node = Node(f"hgx-h100+{fault}")
    argv = ["ib_write_bw", "-d", "mlx5_0", "--use_cuda=0", "--use_cuda_dmabuf", "127.0.0.1"]
    run = node.begin(argv)
    node.finish(run)
    assert run.status == 1
    assert told in failure_of(run).text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-a -D 5", "perftest rejects its options"),
        ("--use_cuda=9", "no CUDA device 9"),
        ("--out_jso=x", "does not support the option"),
        ("-Z", "does not support the option"),
    ],
)
def test_options_that_are_refused(words: str, told: str) -> None:
    node = Node("hgx-h100")
    server = node.begin("ib_write_bw -d mlx5_0")
    node.wait(0.3, server)
    run = node.begin(f"ib_write_bw -d mlx5_0 {words} 127.0.0.1")
    node.finish(run)
    assert run.status == 1
    assert told in failure_of(run).text


def test_a_tool_that_is_not_installed() -> None:
    node = Node("hgx-h100+perftest-missing")
    run = node.begin("ib_write_bw -d mlx5_0")
    node.finish(run)
    assert run.status == 127
    failure = run.failure()
    assert failure is not None
    assert "ib_write_bw is not installed" in failure.text


@pytest.mark.parametrize("argv", ["", "iperf3 -s", "/opt/evil/ib_write_bw", "env A=b", "bash -c ib_write_bw"])
def test_what_is_no_test_is_not_run_on(argv: str) -> None:
    node = Node("hgx-h100")
    run = node.begin(argv)
    node.finish(run)
    assert run.status == 127
    assert run.lines == [line for line in run.lines if "not available on a simulated node" in line]


def test_a_stranger_on_the_port() -> None:
    pair: Pair = run_pair("hgx-h100+perftest-port-in-use")
    assert "TCP port is in use" in failure_of(pair.server).text
    assert "peer exited" in failure_of(pair.client).text


def test_a_host_that_nobody_knows() -> None:
    node = Node("hgx-h100")
    run = node.begin("ib_write_bw -d mlx5_0 nowhere.example")
    node.finish(run)
    cure = "Check the name, DNS and /etc/hosts, or give the address"
    assert failure_of(run).text == f"the host name cannot be resolved. {cure}"


def test_what_an_action_mends_is_mended_for_the_next_test() -> None:
    node = Node("hgx-h100+peermem-not-loaded")
    settings = settings_on(node, dmabuf=False)

    def run() -> Run:
        waits, asks = both(node, settings)
        server = node.begin(waits.argv)
        node.wait(0.3, server)
        client = node.begin(asks.argv)
        node.finish(server, client)
        return client

    assert "nvidia_peermem" in failure_of(run()).text
    assert node.host.perform(("modprobe", "nvidia-peermem")).exit_status == 0
    assert run().status == 0


def test_a_port_without_a_key_at_the_index_times_out() -> None:
    name = "hgx-h100+pkey-index0-zero"
    right = run_pair(name, lambda node: settings_on(node, None))
    assert right.settings.pkey_index == 1
    assert right.client.status == 0
    wrong = run_pair(name, lambda node: settings_on(node, None, pkey_index=None))
    assert "status 12" in " ".join(wrong.client.lines)
    failure_of(wrong.client)
