"""What the doctor says of NCCL's own logs, beside what the environment says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge, listed
from probes.checks.nccl.logs import nic_names
from probes.checks.registry import CHECKS, findings
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Finding, Status
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of, findings_on
from tests.support.nccl_logs import LOG, channel, info, line, read
from tests.support.tiers import USUAL_NODES

OF_LOGS = frozenset(check.id for check in CHECKS if check.id.startswith("job-log-"))
VERSION = "NCCL version 2.27.7+cuda12.9"


def examined(*messages: str, environment: str = "", node: str = "hgx-h100") -> Examination:
    """Return a node whose first rank has written these lines; the other ranks have written none."""
    host = SimulatedHost(node, clock=lambda: 1000.0)
    host.tree.add(LOG, "".join(line(41000, message) for message in (VERSION, *messages)).encode())
    if environment:
        path = "/proc/41000/environ"
        content = host.tree.files[path]
        assert isinstance(content, bytes)
        host.tree.add(path, content + environment.encode() + b"\0")
    return examine_with_jobs(host)


def said(examination: Examination, check: str) -> Finding:
    (finding,) = findings(examination, only={check})
    return finding


def values(finding: Finding) -> str:
    return " / ".join(f"{line.source} {line.value}" for line in finding.evidence)


def found_of_logs(examination: Examination) -> set[str]:
    return {finding.id for finding in findings(examination, only=OF_LOGS) if finding.status is Status.FOUND}


def test_what_the_log_says_stands_beside_the_environment() -> None:
    node = examined(
        "NCCL_NET_GDR_LEVEL set by environment to SYS",
        "GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 9 > 5)",
        channel(gdr=False),
        environment="NCCL_NET_GDR_LEVEL=SYS",
    )
    finding = said(node, "job-log-staged")
    assert finding.status is Status.FOUND
    assert finding.severity is Severity.CRITICAL
    assert "The GPU–NIC distance is SYS; the limit is PXB" in finding.cause
    assert "The environment says NCCL_NET_GDR_LEVEL=SYS." in finding.cause
    assert f"{LOG}:3 The GPU–NIC distance is SYS" in values(finding)
    assert "/proc/41000/environ NCCL_NET_GDR_LEVEL=SYS" in values(finding)
    assert finding.fix is not None


def test_some_channels_without_gdr_are_a_warning_and_degrade_the_node() -> None:
    node = examination_of("hgx-h100+job-rank-staged")
    finding = findings_on("hgx-h100+job-rank-staged")["job-log-staged"]
    assert finding.severity is Severity.WARNING
    assert "28 of 32 channels on 7 of 8 ranks" in values(finding)
    assert judge(node).verdict.state is State.DEGRADED
    assert "Rank 5 (GPU5, mlx5_6) has channels without GPUDirect RDMA" in finding.cause
    assert finding.devices == ("0000:9b:00.0", "mlx5_6")
    assert finding.fix is not None
    assert "Compare the ranks" in finding.fix.steps[0].why


@pytest.mark.slow
def test_a_setting_in_the_environment_is_the_cause_of_what_the_log_says() -> None:
    for fault in ("nccl-ib-disabled", "nccl-net-socket"):
        assert findings_on(f"hgx-h100+{fault}")["job-log-tcp"].part_of == fault
    assert findings_on("dgx-a100+gpu-nic-cross-socket")["job-log-staged"].part_of == "gpu-nic-cross-socket"


def test_the_environment_is_said_where_it_does_not_explain_tcp() -> None:
    finding = findings_on("hgx-h100+job-tcp")["job-log-tcp"]
    assert finding.part_of == "job-over-tcp"
    assert "NCCL found no InfiniBand or RoCE device" in finding.cause
    assert finding.cause.endswith("The environment sets no variable that selects TCP.")


def test_the_socket_plugin_of_google_is_tcp() -> None:
    node = examined(channel(gdr=False, network="FastSocket/0"))
    assert {"job-log-tcp", "job-log-staged"} & found_of_logs(node) == {"job-log-tcp"}
    assert "1 of its ranks on this node use NET/FastSocket" in values(said(node, "job-log-tcp"))


def test_a_node_without_rdma_devices_has_no_finding_about_tcp() -> None:
    node = examined(channel(gdr=False, network="Socket/0"))
    assert said(node, "job-log-tcp").status is Status.FOUND
    assert not isinstance(node.node.rdma, Unknown)
    bare = replace(node, node=replace(node.node, rdma=replace(node.node.rdma, devices=())))
    assert said(bare, "job-log-tcp").status is Status.PASSED


def test_nccl_cannot_register_gpu_memory_although_the_node_can() -> None:
    finding = findings_on("hgx-h100+job-log-gdr-disabled")["job-log-gdr-disabled"]
    assert "This node supports DMA-BUF and nvidia-peermem, but" in finding.cause
    assert 'no line "DMA-BUF is available"' in finding.cause
    found = findings_on("hgx-h100+job-log-gdr-disabled")
    assert {found[name].part_of for name in ("job-log-gdr-disabled", "job-log-staged")} == {"job-staged"}


def test_the_effect_on_a_job_is_the_headline_and_its_log_says_why_and_what_to_do() -> None:
    node = examination_of("hgx-h100+job-log-gdr-disabled")
    found = findings_on("hgx-h100+job-log-gdr-disabled")
    why = found["job-log-gdr-disabled"]
    assert found["job-staged"].title == "train.py copies through host memory"
    assert found["job-staged"].fix == why.fix
    assert judge(node).verdict.reason == f"train.py copies through host memory. {why.title}"
    (rank,) = (finding.title for finding in listed(findings_on("hgx-h100+job-rank-staged").values()))
    assert rank == "Rank 5 of train.py copies through host memory"
    assert findings_on("hgx-h100+job-tcp")["job-over-tcp"].title == "train.py uses TCP instead of RDMA"


def test_a_job_that_is_older_than_the_module_is_to_be_restarted_and_nothing_else() -> None:
    host = SimulatedHost("dgx-a100+peermem-not-loaded")
    before = examine_with_jobs(host)
    (lost,) = findings(before, only={"peermem-not-loaded"})
    assert lost.fix is not None
    assert "Restart them to use GPUDirect RDMA: train.py (alice" in lost.fix.note
    host.perform(("modprobe", "nvidia_peermem"))
    for earlier, likely in ((before, ""), (None, "likely ")):  # who comes later has not seen the module load
        finding = said(examine_with_jobs(host, before=earlier), "job-log-gdr-disabled")
        assert finding.title == f"A job {likely}started before nvidia_peermem was loaded"
        assert finding.fix is not None
        assert [step.why for step in finding.fix.steps] == ["Restart the job"]
        assert "environment" not in finding.cause


def test_a_module_that_was_just_loaded_is_not_called_unneeded() -> None:
    host = SimulatedHost("hgx-h100+peermem-not-loaded")
    before = examine_with_jobs(host)
    host.perform(("modprobe", "nvidia_peermem"))
    after = examine_with_jobs(host, before=before)
    assert said(after, "peermem-unneeded-at-boot").status is Status.PASSED
    again = examine_with_jobs(host, before=after)
    assert said(again, "peermem-unneeded-at-boot").status is Status.PASSED
    assert said(examine_with_jobs(host), "peermem-unneeded-at-boot").status is Status.FOUND


def test_a_node_that_cannot_do_it_does_not_contradict_the_log() -> None:
    found = findings_on("hgx-h100+no-gdr-path")
    assert found["job-log-gdr-disabled"].status is Status.PASSED
    assert found["job-log-staged"].part_of


def test_log_and_measured_path_that_differ_are_the_finding() -> None:
    finding = findings_on("hgx-h100+job-log-differs")["job-log-differs"]
    assert (
        "For rank 0, the log says GPUDirect RDMA on all channels, and the node shows staged." in finding.cause
    )
    assert finding.severity is Severity.WARNING
    other = examined(
        "ncclCommInitRank comm 0x1 rank 0 nranks 32 cudaDev 0 - Init START",
        channel(gdr=False, peers="0[0] -> 8[0]"),
    )
    likely = said(other, "job-log-differs")
    assert "the log says no channel with GPUDirect RDMA, and the node shows likely GDR" in likely.cause
    assert likely.severity is Severity.NOTE


def test_nics_that_the_log_leaves_out_are_named() -> None:
    found = findings_on("hgx-h100+job-log-other-nics")
    finding = found["job-log-other-nics"]
    assert "uses mlx5_4, mlx5_9, without mlx5_0 (nearest to GPU0)" in finding.cause
    assert finding.part_of == "job-log-other-setting"
    assert "but the job's log says NCCL_IB_HCA==mlx5_4,mlx5_9" in found["job-log-other-setting"].cause


def test_a_data_direct_interface_is_its_nic() -> None:
    """NCCL calls it mlx5_0_dma: ncclIbInitDevices() of net_ib/init.cc."""
    log = read(info("NET/IB : Using [0]mlx5_0_dma:1/RoCE [1]mlx5_1_dma+mlx5_2_dma:1/RoCE [RO]; OOB e:1<0>"))
    assert nic_names(log) == {"mlx5_0", "mlx5_1", "mlx5_2"}


@pytest.mark.slow
def test_a_default_plugin_that_is_not_there_is_no_fault() -> None:
    missing = "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."
    assert said(examined(missing), "job-log-plugin-missing").status is Status.PASSED
    named = examined(missing, environment="NCCL_NET_PLUGIN=ofi")
    assert said(named, "job-log-plugin-missing").status is Status.FOUND
    none = examined(missing, environment="NCCL_NET_PLUGIN=none")
    assert said(none, "job-log-plugin-missing").status is Status.PASSED


def test_nics_that_need_a_plugin_need_no_variable() -> None:
    node = examined("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.")
    assert not isinstance(node.node.pci, Unknown)
    bdf = next(iter(node.node.pci.functions))
    functions = {**node.node.pci.functions, bdf: replace(node.node.pci.functions[bdf], driver="efa")}
    on_efa = replace(node, node=replace(node.node, pci=replace(node.node.pci, functions=functions)))
    finding = said(on_efa, "job-log-plugin-missing")
    assert finding.status is Status.FOUND
    assert "efa NICs need a plugin" in finding.cause


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "environment", "is_found"),
    [
        ("NCCL_IB_TIMEOUT set by environment to 22.", "NCCL_IB_TIMEOUT=0x16", False),
        ("NCCL_IB_TIMEOUT set by environment to 22.", "NCCL_IB_TIMEOUT=20", True),
        ("NCCL_IB_TIMEOUT set by environment to 22.", "", True),
        ("NCCL_NET_GDR_LEVEL set by environment to PHB", "NCCL_NET_GDR_LEVEL=3", False),
        ("NCCL_SOCKET_IFNAME set by environment to eth0", "NCCL_SOCKET_IFNAME=eth0", False),
    ],
)
def test_settings_are_compared_as_nccl_reads_them(line: str, environment: str, is_found: bool) -> None:
    node = examined(line, environment=environment)
    assert (said(node, "job-log-other-setting").status is Status.FOUND) == is_found


def test_errors_in_the_log_are_explained() -> None:
    finding = findings_on("hgx-h100+job-log-errors")["job-log-errors"]
    assert "Completion error 12" in finding.cause
    assert "1 line, hgx-h100:41000[0]" in values(finding)
    assert "10.0.0.2" not in values(finding) + finding.cause, "addresses of the log stay in the log"


@pytest.mark.parametrize(
    ("warning", "is_found"),
    [
        ("Error: failed to extend /dev/shm/nccl-aB3dE5 to 33030532 bytes, error: No space left", True),
        ("dlvsym failed on mlx5dv_get_data_direct_sysfs_path - undefined symbol version MLX5_1.25", False),
    ],
)  # fmt: skip
def test_errors_that_end_a_job_are_found_and_notes_are_not(warning: str, is_found: bool) -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    host.tree.add(LOG, line(41000, warning).replace("NCCL INFO", "misc/x.cc:1 NCCL WARN").encode())
    node = examine_with_jobs(host)
    assert (said(node, "job-log-errors").status is Status.FOUND) == is_found


def test_a_notice_is_no_error_of_the_job() -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    notice = line(41000, "Duplicate GPU detected : rank 1 and rank 0").replace(
        "NCCL INFO", "init.cc:1 NCCL ATTN"
    )
    host.tree.add(LOG, notice.encode())
    assert said(examine_with_jobs(host), "job-log-errors").status is Status.PASSED


def test_a_healthy_job_has_no_finding() -> None:
    for name in USUAL_NODES:
        expected = {"job-log-staged"} if name == "pcie-l40s" else set()
        assert found_of_logs(examination_of(name)) == expected


@pytest.mark.slow
def test_each_fault_of_a_log_is_found_and_no_other_one() -> None:
    follows = {"job-log-gdr-disabled": {"job-log-staged"}, "job-log-other-nics": {"job-log-other-setting"}}
    for name in OF_LOGS & set(FAULTS):
        assert found_of_logs(examination_of(f"hgx-h100+{name}")) == {name, *follows.get(name, set())}


def test_without_logs_the_checks_do_not_apply_and_unread_logs_are_unknown() -> None:
    node = examination_of("hgx-h100")
    for check in OF_LOGS:
        assert said(replace(node, job_logs=()), check).status is Status.PASSED
        not_recorded = Unknown(Reason.NOT_RECORDED, LOG, "recordings do not contain job logs")
        finding = said(replace(node, job_logs=not_recorded), check)
        assert finding.status is Status.UNKNOWN
        assert "recordings do not contain job logs" in finding.cause


def test_a_log_that_only_root_can_read_is_unknown() -> None:
    node = examined()
    assert isinstance(node.job_logs, tuple)
    silent = replace(node.job_logs[0], facts=replace(node.job_logs[0].facts, nccl_lines=0))
    assert said(replace(node, job_logs=(silent,)), "job-log-staged").status is Status.PASSED
    guarded = replace(silent, needs_root=True)
    finding = said(replace(node, job_logs=(guarded,)), "job-log-staged")
    assert finding.cause == "needs root: the NCCL logs of the jobs"
