"""What Prometheus reads about simulated nodes."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from probes.base.unknown import Maybe
from probes.checks.judgment import judge
from probes.host.machine.local import LocalHost
from probes.metrics import metric_list
from probes.metrics.metric_list import Family, Sample
from probes.simulation.host import SimulatedHost
from tests.support.doctor import examination_of
from tests.support.observed_metrics import METRICS, families_of, reader_of, values
from tests.support.pilot import SteppedClock
from tests.support.simulated_tree import write_tree
from tui.commands.metrics.reading import OPEN_METRICS, MetricsReader, encode
from tui.manual import page

HGX, ROCE, ACS = "hgx-h100", "bare-roce", "hgx-h100+acs-on"
STORAGE = "hgx-h100+storage-traffic"
NODES = (HGX, ROCE, ACS, "aws-p5", "cloud-vm", "dgx-spark")


@pytest.mark.parametrize("name", NODES)
def test_both_parsers_read_every_metric_back(name: str) -> None:
    families = families_of(name)
    text = encode(families).decode()
    read = list(parse_text(text))
    strict = list(parse_openmetrics(encode(families, OPEN_METRICS).decode()))
    assert {family.name for family in read} == {family.name for family in strict}
    samples = [sample for family in read for sample in family.samples]
    assert len(samples) == sum(len(family.samples) for family in families)
    assert len(samples) < 800
    assert all(sample.timestamp is None for sample in samples)  # node_exporter skips a file with timestamps
    assert not {"pid", "job", "command", "comm", "instance"} & {name for s in samples for name in s.labels}


def test_every_metric_is_in_the_list_written_and_in_the_manual() -> None:
    written = {
        family.metric
        for name in (*NODES, STORAGE, "hgx-h100+nic-slow")
        for family in families_of(name, with_bytes=True)
    }
    written |= {*metric_list.PORT_EVENTS.values()}  # those that the simulated NICs do not have
    assert written == {*METRICS}, "metrics.toml and families() of probes/metrics/ differ"
    named = re.findall(r"`(gdrtop_[a-z_*]+)`", page("metrics"))
    missing = {
        metric.name for metric in METRICS if not any(fnmatch(metric.name, pattern) for pattern in named)
    }
    assert not missing, f"add a row to tui/manual/metrics.md for {missing}"


def test_every_metric_has_a_name_in_base_units_and_a_help_text() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"gdrtop_[a-z0-9_]+", metric.name)
        assert not re.search(r"_(percent|gbps|ms|kb|mib)(_|$)", metric.name)
        assert metric.help.endswith(".")
        read = next(iter(parse_text(encode([Family(metric, (Sample({}, 1.0),))]).decode())))
        assert (read.type, read.documentation) == (metric.kind.value, metric.help)


@pytest.mark.parametrize("name", [HGX, ACS, "dgx-spark"])
def test_verdict_and_findings_are_those_of_check(name: str) -> None:
    families, judgment = families_of(name), judge(examination_of(name))
    verdict = judgment.verdict
    states = values(families, "gdrtop_verdict", "state")
    assert [state for state, value in states.items() if value] == [(verdict.state.name.lower(),)]
    assert len(states) == 6
    counts = {("critical",): verdict.critical, ("warning",): verdict.warnings}
    assert values(families, "gdrtop_findings", "severity") == counts
    assert values(families, "gdrtop_gpus_direct") == {(): verdict.gpus_served}
    found = values(families, "gdrtop_finding", "id", "severity")
    active = {(name, severity) for name, severity in found if severity != "note"}
    assert active == {(finding.id, finding.severity.value) for finding in judgment.listed}


def test_gpu_time_with_findings_can_be_added_up_over_a_fleet() -> None:
    found = values(families_of("hgx-h100+nic-slow"), "gdrtop_finding_gpu_seconds", "id", "what")
    assert found["pcie-link-degraded-width", "lost"] == 5 * 3600
    assert found["any", "in_jobs"] == 74 * 3600


def test_labels_can_be_joined_with_node_exporter_and_dcgm() -> None:
    families = families_of(HGX)
    paths = values(families, "gdrtop_path_info", "device", "gpu", "uuid", "pci_bus_id", "path")
    assert len(paths) == 80
    for device, gpu, uuid, bus_id, path in paths:
        assert re.fullmatch(r"mlx5_\d", device)
        assert re.fullmatch(r"[0-7]", gpu)
        assert uuid.startswith("GPU-")
        assert re.fullmatch(r"0000[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.0", bus_id)
        assert path in ("PIX", "PXB", "PXN", "PHB", "SYS")
    ports = values(families, "gdrtop_port_transmit_wait_ratio", "device", "port")
    assert ("mlx5_0", "1") in ports


def test_a_finding_names_its_devices() -> None:
    devices = values(families_of(ACS), "gdrtop_finding", "id", "device", "pci_bus_id")
    assert devices
    assert any(bus_id == f"0000{device}".upper() for _, device, bus_id in devices)


@pytest.mark.slow
def test_jobs_are_counted_by_path() -> None:
    jobs = values(families_of(HGX), "gdrtop_jobs", "path")
    assert jobs["peermem",] == 1
    assert jobs["staged",] == 0
    assert values(families_of(HGX), "gdrtop_job_processes", "path")["peermem",] == 8
    staged = families_of("hgx-h100+job-tcp")
    assert values(staged, "gdrtop_jobs", "path")["tcp",] >= 1


def test_a_job_that_hangs_shows_from_the_second_reading_on() -> None:
    """One reading shows no silence, and is unknown instead of 0."""
    seen = []
    for name in ("hgx-h100+job-hung", "hgx-h100"):
        clock = SteppedClock()
        reader = reader_of(SimulatedHost(name, clock=clock), clock)
        for _ in range(3):
            found = reader.read()
            silent = values(found, "gdrtop_job_silent_seconds")
            unknown = values(found, "gdrtop_unknown_values", "metric")["gdrtop_job_silent_seconds",]
            degraded = values(found, "gdrtop_verdict", "state")["degraded",]
            seen.append((silent.get((), -1.0), unknown, degraded))
            clock.now += 59.0
    assert seen == [*((-1.0, 1, 0), (60.0, 0, 1), (119.0, 0, 1)), *((-1.0, 1, 0), (0.0, 0, 0), (0.0, 0, 0))]


def test_clients_in_the_kernel_are_named_by_their_nic() -> None:
    families = families_of("hgx-h100+storage-traffic")
    assert values(families, "gdrtop_kernel_client_info", "device", "client") == {("mlx5_1", "Lustre"): 1.0}
    for text, parse in ((encode(families), parse_text), (encode(families, OPEN_METRICS), parse_openmetrics)):
        (read,) = (each for each in parse(text.decode()) if each.name == "gdrtop_kernel_client_info")
        assert [sample.labels["client"] for sample in read.samples] == ["Lustre"]
    assert not values(families_of("hgx-h100"), "gdrtop_kernel_client_info", "device")


def test_peermem_that_is_not_loaded_has_no_reference_count() -> None:
    families = families_of("hgx-h100+peermem-not-loaded")
    assert values(families, "gdrtop_peermem_loaded") == {(): 0}
    assert values(families, "gdrtop_peermem_refcnt") == {}
    assert values(families_of(HGX), "gdrtop_peermem_loaded") == {(): 1}


def test_pauses_of_a_link_without_priorities_are_exported_too() -> None:
    class WithGlobalPause(SimulatedHost):
        """A node whose links have flow control for all priorities at once."""

        def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
            counters = {"rx_global_pause_duration": 2_500_000, "tx_global_pause_duration": 0}
            return dict.fromkeys(names, counters)

    clock = SteppedClock()
    found = reader_of(WithGlobalPause(ROCE, clock=clock), clock).read()
    pauses = values(found, "gdrtop_port_pause_seconds_total", "device", "direction", "priority")
    assert {labels[1:]: value for labels, value in pauses.items()} == {
        ("received", "all"): 2.5,
        ("transmitted", "all"): 0,
    }


def test_congestion_shows_in_pauses_and_waits() -> None:
    name = "oci-h100+congestion"
    families = families_of(name, seconds=40)
    pauses = values(families, "gdrtop_port_pause_seconds_total", "direction", "priority", "device")
    (nic, *_) = [device for direction, priority, device in pauses if pauses[direction, priority, device] > 1]
    assert pauses["received", "3", nic] > 1
    assert pauses["received", "4", nic] == 0
    assert max(values(families, "gdrtop_port_transmit_wait_ratio", "device").values()) > 0


def test_bytes_are_left_to_node_exporter_unless_asked_for() -> None:
    name = "gdrtop_port_data_transmitted_bytes_total"
    assert values(families_of(HGX), name) == {}
    sent = values(families_of(HGX, with_bytes=True), name, "device", "port")
    host = SimulatedHost(HGX, clock=lambda: 1001.0)
    file = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    assert sent["mlx5_0", "1"] == pytest.approx(4 * int(str(host.read(file))), rel=1e-3)


@pytest.mark.slow
def test_a_tree_of_files_has_no_jobs_and_no_ratios_and_says_so(tmp_path: Path) -> None:
    write_tree(SimulatedHost(HGX, clock=lambda: 1000.0), tmp_path)
    families = MetricsReader(LocalHost(str(tmp_path)), wait=lambda _: None).read()
    unknown = values(families, "gdrtop_unknown_values", "metric")
    for name in ("gdrtop_jobs", "gdrtop_port_transmit_wait_ratio"):
        assert values(families, name) == {}
        assert unknown[name,] >= 1
    assert values(families, "gdrtop_build_info", "source") == {("tree",): 1}


def test_a_node_that_cannot_be_read_counts_no_gpus(tmp_path: Path) -> None:
    families = MetricsReader(LocalHost(str(tmp_path)), wait=lambda _: None).read()
    states = values(families, "gdrtop_verdict", "state")
    assert states["unknown",] == 1
    assert values(families, "gdrtop_gpus") == {}
    assert values(families, "gdrtop_gpus_direct") == {}
    assert values(families, "gdrtop_peermem_loaded") == {}
    assert values(families, "gdrtop_unknown_values", "metric")["gdrtop_gpus_direct",] == 1


def test_ports_of_pods_are_exported_that_other_exporters_on_the_host_do_not_see() -> None:
    name = "gdrtop_port_data_transmitted_bytes_total"
    sent = values(families_of("pcie-l40s+rdma-devices-in-pods-root", with_bytes=True), name, "device", "port")
    assert set(sent) == {("mlx5_0", "1"), ("mlx5_1", "1")}
    assert sent["mlx5_0", "1"] > 0


def test_temperatures_are_exported_by_sensor_with_their_limit() -> None:
    families = {family.metric.name: family for family in families_of("hgx-h100+optic-hot")}
    for name, celsius in (
        ("gdrtop_nic_temperature_celsius", 78),
        ("gdrtop_nic_temperature_limit_celsius", 75),
    ):
        found = {
            (sample.labels["device"], sample.labels["sensor"]): sample.value
            for sample in families[name].samples
        }
        assert found["mlx5_3", "Module0"] == celsius
        assert ("mlx5_4", "asic") in found
        assert ("mlx5_4", "Module0") not in found  # a copper cable


def test_a_driver_without_sensors_has_no_temperatures_and_no_0() -> None:
    families = {family.metric.name: family for family in families_of("pcie-l40s")}
    assert "gdrtop_nic_temperature_celsius" not in {name for name, each in families.items() if each.samples}
