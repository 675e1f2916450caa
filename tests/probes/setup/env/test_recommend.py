"""What each node needs, argued from how it is built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.rdma.devices import RdmaFacts
from probes.nccl.variables.catalogue import parse_version, variables
from probes.queries.finding import Status
from probes.setup.env.advice import Note, Setting, State, lines_of
from probes.setup.env.nics import nic_advice
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.simulation.node.model.description import simulated_names
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import examine
from tests.support.doctor import examination_of
from tests.support.env_nodes import advice_for, changed, note_on

STORAGE = ("mlx5_4", "mlx5_5")


def fast_storage(tree: Tree) -> None:
    """Give the storage NICs of dgx-a100 twice the rate of the compute NICs."""
    for nic in tree.nics:
        if nic.name in STORAGE:
            tree.add(f"{nic.path}/infiniband/{nic.name}/ports/1/rate", "400 Gb/sec (4X NDR)\n")


def without_ipv4(tree: Tree) -> None:
    """Replace the IPv4 addresses of RoCE NICs by global IPv6 ones."""
    for path, content in list(tree.files.items()):
        if "/gids/" in path and isinstance(content, bytes | str) and "ffff:0a" in tree.text(path):
            tree.add(path, "2001:0db8:0000:0000:0000:0000:0000:0007\n")


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100"])
def test_an_infiniband_node_needs_nothing(name: str) -> None:
    """Each GPU has a NIC below its switch, and the storage NICs are slower or farther."""
    advice, settings = advice_for(name)
    assert settings == {}
    assert advice.is_complete
    assert "does not use mlx5_4" in note_on(advice, "NCCL_IB_HCA").text
    assert all(note.state is State.NOT_NEEDED for note in advice.notes)


@pytest.mark.parametrize(
    ("node", "version", "first"),
    [
        ("vera-rubin", "2.31.2", "2.32.3"),
        ("vera-rubin", "2.32.3", ""),
        ("vera-rubin", "2.32", ""),  # each release of 2.32
        ("hgx-b200", "2.24", "2.25.1"),
        ("aws-p6-b300", "2.24", "2.25.1"),
        ("hgx-b200", "2.27", ""),
    ],
)
def test_the_defaults_are_not_called_right_for_an_nccl_without_the_gpu(
    node: str, version: str, first: str
) -> None:
    advice, _ = advice_for(node, version)
    notes = [note for note in advice.notes if note.variable == "NCCL"]
    assert [note.state for note in notes] == ([State.FIX_FIRST] if first else [])
    assert all(f"use {first} or newer" in note.text for note in notes)
    if first:
        assert "are right" not in " ".join(lines_of(advice, node, "shell"))


def test_a_level_for_gpus_across_sockets_is_measured_before_it_is_set() -> None:
    """GPU2 and GPU3 have no NIC on their socket and no NVLink; GPU0 and GPU1 are at PIX."""
    advice, settings = advice_for("pcie-l40s")
    assert settings == {}
    note = note_on(advice, "NCCL_NET_GDR_LEVEL")
    assert note.state is State.MEASURE
    assert "GPU2, GPU3" in note.text
    assert "NCCL_NET_GDR_LEVEL=SYS" in note.text
    assert note_on(advice, "NCCL_IB_TC").state is State.UNKNOWN
    assert not advice.is_complete


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("2.25", {"NCCL_NET_GDR_LEVEL": "PHB"}),  # C2C paths are PHB
        ("2.26", {"NCCL_NET_GDR_C2C": "1"}),  # off by default
        ("2.27", {}),
        ("2.30", {}),
    ],
)
def test_c2c_needs_a_variable_in_old_versions_only(version: str, needed: dict[str, str]) -> None:
    assert advice_for("gb200", version)[1] == needed


def test_an_old_nccl_needs_the_index_of_the_gid() -> None:
    assert advice_for("pcie-l40s", "2.20")[1]["NCCL_IB_GID_INDEX"] == "3"
    assert "NCCL_IB_GID_INDEX" not in advice_for("pcie-l40s", "2.21")[1]
    assert "NCCL_IB_GID_INDEX" not in advice_for("hgx-h100", "2.20")[1]  # RoCE on the storage NICs only


def test_the_class_of_the_ports_is_not_that_of_queue_pairs_of_gpus() -> None:
    note = note_on(advice_for("bare-roce+roce-class-of-gpu")[0], "NCCL_IB_TC")
    assert note.state is State.NOT_NEEDED
    assert "not on that of GIN (NCCL_GIN_IB_TC)" in note.text


def test_ipv6_only_needs_the_address_family() -> None:
    node = changed("pcie-l40s", without_ipv4)
    assert advice_for(node, "2.30")[1]["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert "NCCL_IB_ADDR_FAMILY" not in advice_for(node, "2.20")[1]


def test_a_virtual_machine_does_not_show_distances() -> None:
    advice, settings = advice_for("cloud-vm")
    assert settings == {}
    assert note_on(advice, "NCCL_NET_GDR_LEVEL").state is State.UNKNOWN
    assert note_on(advice, "NCCL_TOPO_FILE").state is State.UNKNOWN


def test_fast_storage_nics_are_kept_out_by_exact_names() -> None:
    """NCCL prefers the fastest NIC, so GPUs on the sockets of the storage NICs would use them."""
    advice, settings = advice_for(changed("dgx-a100", fast_storage))
    compute = [f"mlx5_{number}" for number in (0, 1, 2, 3, 6, 7, 8, 9)]
    assert settings["NCCL_IB_HCA"] == "=" + ",".join(compute)
    assert settings["UCX_NET_DEVICES"] == ",".join(f"{name}:1" for name in compute)
    assert settings["NVSHMEM_ENABLE_NIC_PE_MAPPING"] == "1"
    mapping = settings["NVSHMEM_HCA_PE_MAPPING"].split(",")
    assert sum(int(entry.rpartition(":")[2]) for entry in mapping) == 8
    assert not {entry.partition(":")[0] for entry in mapping} & set(STORAGE)
    assert "mlx5_4" in advice.settings[0].reason


def test_a_nic_that_is_down_is_not_in_the_list() -> None:
    def change(tree: Tree) -> None:
        fast_storage(tree)
        nic = next(nic for nic in tree.nics if nic.name == "mlx5_2")
        tree.add(f"{nic.path}/infiniband/mlx5_2/ports/1/state", "1: DOWN\n")

    advice, settings = advice_for(changed("dgx-a100", change))
    assert "mlx5_2" not in settings["NCCL_IB_HCA"].split(",")
    assert any(note.state is State.FIX_FIRST and "mlx5_2 is down" in note.text for note in advice.notes)


def test_a_lost_near_nic_is_no_reason_for_a_level() -> None:
    def change(tree: Tree) -> None:
        nic = next(nic for nic in tree.nics if nic.name == "mlx5_0")
        tree.add(f"{nic.path}/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")

    advice, settings = advice_for(changed("pcie-l40s", change))
    assert "NCCL_NET_GDR_LEVEL" not in settings
    assert note_on(advice, "NCCL_NET_GDR_LEVEL").state is State.FIX_FIRST


def test_nothing_is_recommended_without_a_usable_path() -> None:
    advice, settings = advice_for("pcie-l40s+no-gdr-path")
    assert "NCCL_NET_GDR_LEVEL" not in settings
    assert note_on(advice, "NCCL_NET_GDR_LEVEL").state is State.FIX_FIRST


def bmc(tree: Tree) -> None:
    """Add the BMC's USB interface before the management NIC."""
    tree.add("/sys/class/net/eno1/ifindex", "9\n")
    tree.add("/sys/class/net/enxbe3af2b6059f/ifindex", "2\n")
    for nic in tree.nics:  # storage NICs have networks too
        for path in list(tree.files):
            if path.startswith(f"{nic.path}/net/") and path.endswith("/ifindex"):
                tree.add(path, "20\n")
    route = "enxbe3af2b6059f\t0003FEA9\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    tree.add("/proc/net/route", tree.text("/proc/net/route").rstrip("\n") + "\n" + route)


def test_bootstrap_must_not_use_the_bmc() -> None:
    advice, settings = advice_for(changed("hgx-h100", bmc))
    assert settings == {"NCCL_SOCKET_IFNAME": "=eno1"}
    assert "enxbe3af2b6059f" in advice.settings[0].reason


def test_nccl_conf_is_read_and_not_fought() -> None:
    def same(tree: Tree) -> None:
        tree.add("/etc/nccl.conf", "NCCL_NET_GDR_LEVEL=SYS\n")

    def different(tree: Tree) -> None:
        tree.add("/etc/nccl.conf", "NCCL_NET_GDR_LEVEL=PHB\n")

    advice, settings = advice_for(changed("pcie-l40s", same))
    assert settings == {}
    assert note_on(advice, "NCCL_NET_GDR_LEVEL").state is State.IN_FILE
    advice, settings = advice_for(changed("pcie-l40s", different))
    assert settings == {}
    assert note_on(advice, "NCCL_NET_GDR_LEVEL").text == "PHB is already in /etc/nccl.conf"


def test_without_gpus_or_nics_the_reason_is_said() -> None:
    examination = examination_of("hgx-h100")
    gone = Unknown(Reason.NOT_THERE, "/sys/class/infiniband")
    advice, _ = advice_for(replace(examination, node=replace(examination.node, rdma=gone)))
    assert "the RDMA devices are unknown" in advice.nothing


@pytest.mark.parametrize(
    ("name", "version"), [("pcie-l40s", ""), ("pcie-l40s", "2.20"), ("gb200", "2.25"), ("fast storage", "")]
)
def test_the_doctor_does_not_object_to_a_job_with_these_settings(name: str, version: str) -> None:
    change = fast_storage if name == "fast storage" else lambda tree: None
    node = "dgx-a100" if name == "fast storage" else name
    _, settings = advice_for(changed(node, change), version)
    host = SimulatedHost(node, clock=lambda: 1000.0)
    change(host.tree)
    add_rank(host.tree, 46000, 0, settings)
    objections = [
        finding.id
        for finding in findings(examine(host))
        if finding.status is Status.FOUND
        and finding.severity is not Severity.NOTE
        and any("/proc/46000/environ" in line.source for line in finding.evidence)
    ]
    assert not objections


@pytest.mark.parametrize("name", simulated_names())
@pytest.mark.parametrize("version", ["2.20", "2.26", "2.30"])
def test_nothing_that_is_the_default_is_recommended(name: str, version: str) -> None:
    for setting in advice_for(name, version)[0].settings:
        if setting.name in variables():  # not those of MPI
            assert variables()[setting.name].default(parse_version(version)) != setting.value


def test_a_pair_of_dgx_spark_uses_both_functions_of_each_port() -> None:
    advice = advice_for("dgx-spark")[0]
    assert {setting.name: setting.value for setting in advice.settings} == {
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "UCX_NET_DEVICES": "enp1s0f0np0",
        "OMPI_MCA_btl_tcp_if_include": "enp1s0f0np0",
    }
    assert note_on(advice, "NCCL_NET_GDR_LEVEL").state is State.NOT_NEEDED


def test_a_port_with_a_function_down_is_repaired_first() -> None:
    advice = advice_for("dgx-spark+spark-function-down")[0]
    assert note_on(advice, "NCCL_IB_HCA").state is State.FIX_FIRST
    assert not advice.settings


def without_conf(tree: Tree) -> None:
    tree.add(NCCL_CONF, "")


def test_what_the_conf_file_sets_is_not_unknown() -> None:
    advice = advice_for("bare-roce")[0]
    assert note_on(advice, "NCCL_IB_TC").state is State.IN_FILE
    assert note_on(advice, "NCCL_IB_QPS_PER_CONNECTION").state is State.IN_FILE


def test_bonds_need_a_measurement_with_more_queue_pairs() -> None:
    note = note_on(advice_for(changed("bare-roce", without_conf))[0], "NCCL_IB_QPS_PER_CONNECTION")
    assert note.state is State.UNKNOWN
    assert "mlx5_bond_0" in note.text


def test_the_priorities_with_flow_control_are_named_but_not_chosen() -> None:
    note = note_on(advice_for(changed("bare-roce", without_conf))[0], "NCCL_IB_TC")
    assert note.state is State.UNKNOWN
    assert "PFC for priority 3 (class 96, 100, 104, 108" in note.text


def test_what_manages_nvswitches_is_no_nic_of_jobs() -> None:
    node = examination_of("hgx-b200")
    rdma = node.node.rdma
    assert isinstance(rdma, RdmaFacts)
    note, *_ = nic_advice(node)
    assert isinstance(note, Note)
    assert "only manage NVSwitches" in note.text
    fast = tuple(
        replace(device, ports=tuple(replace(port, rate_gbps=400.0) for port in device.ports))
        for device in rdma.management
    )
    setting, *_ = nic_advice(replace(node, node=replace(node.node, rdma=replace(rdma, management=fast))))
    assert isinstance(setting, Setting)
    assert setting.value == "=" + ",".join(f"mlx5_{number}" for number in range(4, 12))
