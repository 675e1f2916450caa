"""Checks of partition keys: index 0, ports that differ, and what jobs are set to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown, known
from probes.checks.judgment import judge
from probes.facts.jobs.nccl_conf import NcclConf
from probes.facts.jobs.process_files import parse_maps
from probes.facts.rdma.partition_keys import KeyTable, PartitionKeyFacts
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Status
from probes.setup.env.recommend import recommend
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.examination import Examination, examine
from tests.support.changed_facts import found_in, said, status, with_devices
from tests.support.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")
ABSENT = Unknown(Reason.NOT_THERE, "cloud")
AZURE = examination_of("azure-nd-h100")
UNUSABLE, LIMITED, DIFFERS, SETTING = (
    *("pkey-index0-unusable", "pkey-index0-limited", "pkey-differs", "pkey-setting-wrong"),
)


def key_table(*keys: int, length: int = 128) -> KeyTable:
    """Return a table that was read whole."""
    used = {index: key for index, key in enumerate(keys) if key}
    return KeyTable(used, frozenset(range(length)), length)


def facts_of(examination: Examination) -> PartitionKeyFacts:
    facts = examination.partition_keys
    assert isinstance(facts, PartitionKeyFacts)
    return facts


def with_keys(examination: Examination, *keys: int, names: Sequence[str] = ()) -> Examination:
    """Set the keys of all ports, or of those of these NICs."""
    ports = {
        port: key_table(*keys) if not names or port[0] in names else table
        for port, table in facts_of(examination).ports.items()
    }
    return replace(examination, partition_keys=PartitionKeyFacts(ports))


def with_conf(examination: Examination, **values: str) -> Examination:
    """Set variables in nccl.conf, with no job running."""
    facts = examination.processes
    assert not isinstance(facts, Unknown)
    conf = NcclConf(values, ())
    return replace(examination, processes=replace(facts, processes=(), nccl_conf=conf))


def with_variables(examination: Examination, **values: str) -> Examination:
    """Set variables of every process of the training job."""
    facts = examination.processes
    assert not isinstance(facts, Unknown)
    processes = tuple(
        replace(each, environment={**known(each.environment, {}), **values}) for each in facts.processes
    )
    return replace(examination, processes=replace(facts, processes=processes))


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_healthy_nodes_have_usable_keys(name: str) -> None:
    found = findings_on(name)
    assert {found[check].status for check in (UNUSABLE, LIMITED, DIFFERS, SETTING)} == {Status.PASSED}


def test_a_limited_default_key_beside_a_full_one_is_normal() -> None:
    assert {table.text for table in facts_of(AZURE).ports.values() if isinstance(table, KeyTable)} == {
        "0: 0x8013 full, 1: 0x7fff limited"
    }
    assert not {UNUSABLE, LIMITED, DIFFERS} & found_in(with_keys(HGX, 0x8001, 0x7FFF, 0x7FFE)).keys()


def test_no_key_at_index_0_names_the_index_that_works() -> None:
    finding = said(UNUSABLE, examination_of("hgx-h100+pkey-index0-zero"))
    assert finding.severity is Severity.CRITICAL
    assert "at index 1" in finding.cause
    assert finding.fix is not None
    for words in ("NCCL_IB_PKEY=1", "MC_PKEY_INDEX=1", "--pkey_index=1"):
        assert words in finding.fix.steps[0].why


def test_an_index_that_other_ports_do_not_have_is_not_suggested() -> None:
    finding = said(UNUSABLE, with_keys(HGX, 0, 0x8001, names=["mlx5_1"]))
    assert finding.fix is not None
    assert [step.why for step in finding.fix.steps] == [
        "Ask who runs the subnet manager for full membership at index 0"
    ]


def test_nccl_conf_with_another_index_makes_it_a_note() -> None:
    empty = with_conf(with_keys(HGX, 0, 0x8001))
    assert said(UNUSABLE, empty).severity is Severity.CRITICAL
    for index, severity in (("1", Severity.NOTE), ("2", Severity.CRITICAL)):
        assert said(UNUSABLE, with_conf(empty, NCCL_IB_PKEY=index)).severity is severity


def test_a_limited_key_is_critical_only_while_a_job_uses_it() -> None:
    limited = with_keys(HGX, 0x7FFF, 0x8001)
    assert said(LIMITED, limited).severity is Severity.CRITICAL
    assert said(LIMITED, with_conf(limited)).severity is Severity.WARNING
    assert said(LIMITED, with_variables(limited, NCCL_IB_PKEY="1")).severity is Severity.WARNING


def test_a_port_without_any_full_key() -> None:
    limited = with_conf(with_keys(HGX, 0x7FFF))
    assert said(LIMITED, limited).severity is Severity.WARNING
    assert "No other entry" in said(LIMITED, limited).cause
    virtual = with_devices(limited, lambda device: replace(device, is_virtual_function=True))
    assert said(LIMITED, virtual).severity is Severity.CRITICAL
    assert "virtual function" in said(LIMITED, virtual).cause


def test_a_storage_nic_may_be_a_limited_member() -> None:
    node = examination_of("dgx-a100")
    near = node.topology.nics_near_gpus
    storage = [name for name, _ in facts_of(node).ports if name not in near]
    if storage:
        assert said(LIMITED, with_keys(node, 0x7FFF, names=storage)).severity is Severity.NOTE
        assert status(DIFFERS, with_keys(node, 0x8009, names=storage)) is Status.PASSED


def test_tables_that_a_subnet_manager_rewrites_are_no_finding() -> None:
    """Two readings have to agree, and an empty table is nothing before the second one."""
    bad = with_keys(HGX, 0, 0x8001)
    assert status(UNUSABLE, replace(bad, earlier_partition_keys=HGX.partition_keys)) is Status.PASSED
    assert status(UNUSABLE, replace(bad, earlier_partition_keys=bad.partition_keys)) is Status.FOUND
    assert status(UNUSABLE, bad) is Status.FOUND
    empty = with_keys(HGX)
    assert status(UNUSABLE, empty) is Status.UNKNOWN
    assert "second reading" in said(UNUSABLE, empty).cause
    assert status(UNUSABLE, replace(empty, earlier_partition_keys=empty.partition_keys)) is Status.FOUND


def test_a_second_examination_knows_the_first() -> None:
    host = SimulatedHost("hgx-h100")
    first = examine(host)
    assert examine(host, before=first).earlier_partition_keys == first.partition_keys


@pytest.mark.parametrize("check", [UNUSABLE, LIMITED, DIFFERS])
def test_a_table_that_cannot_be_read_is_unknown_unless_another_is_bad(check: str) -> None:
    unread = {**facts_of(HGX).ports, ("mlx5_0", 1): Unknown(Reason.IO_ERROR)}
    assert status(check, replace(HGX, partition_keys=PartitionKeyFacts(unread))) is Status.UNKNOWN
    bad = {**unread, ("mlx5_1", 1): key_table(0x7FFF if check == LIMITED else 0, 0x8001)}
    assert status(check, replace(HGX, partition_keys=PartitionKeyFacts(bad))) is Status.FOUND


def test_ports_with_the_same_key_at_index_0_differ_as_a_note() -> None:
    second = with_conf(with_keys(AZURE, 0x8013, 0x7FFF, 0x8020, names=["mlx5_3"]))
    assert said(DIFFERS, second).severity is Severity.NOTE
    indexed = with_conf(second, NCCL_IB_PKEY="2")
    assert said(DIFFERS, indexed).severity is Severity.WARNING
    assert said(DIFFERS, with_keys(AZURE, 0x8014, names=["mlx5_3"])).severity is Severity.WARNING


def test_a_difference_follows_from_an_unusable_index_0() -> None:
    found = {row.id: row for row in judge(with_keys(HGX, 0, 0x8001, names=["mlx5_1"])).findings}
    assert found[DIFFERS].part_of == UNUSABLE


@pytest.mark.parametrize(
    ("variables", "remark"),
    [
        ({"NCCL_IB_PKEY": "0"}, ""),
        ({"NCCL_IB_PKEY": "2"}, ""),
        ({"NCCL_IB_PKEY": "1"}, "entry 1 is 0x7fff limited"),
        ({"NCCL_IB_PKEY": "3"}, "entry 3 is 0x0000 empty"),
        ({"NCCL_IB_PKEY": "128"}, "no index 128"),
        ({"NCCL_IB_PKEY": "0x8001"}, "no index 32769"),
        ({"NCCL_IB_PKEY": "none"}, ""),
        ({"MC_PKEY_INDEX": "2"}, ""),
        ({"MC_PKEY_INDEX": "4"}, "entry 4 is 0x0000 empty"),
        ({"NCCL_IB_PKEY_VALUE": "0x8002"}, ""),
        ({"NCCL_IB_PKEY_VALUE": "-1"}, ""),
        ({"NCCL_IB_PKEY_VALUE": "0x8009"}, "0x8009 is not in the table"),
        ({"UCX_IB_PKEY": "auto"}, ""),
        ({"UCX_IB_PKEY": "0x2"}, ""),
        ({"UCX_IB_PKEY": "0x9"}, "0x0009 is not in the table"),
        ({"UCX_IB_PKEY": "0x8002"}, "out of range"),
    ],
)
def test_the_key_of_a_job(variables: Mapping[str, str], remark: str) -> None:
    node = with_conf(with_keys(HGX, 0x8001, 0x7FFF, 0x8002), **variables)
    finding = said(SETTING, node)
    assert (finding.status is Status.FOUND) == bool(remark)
    assert remark in " ".join(line.value for line in finding.evidence)


def test_an_entry_that_was_not_read_is_unknown() -> None:
    short = {port: KeyTable({0: 0xFFFF}, frozenset(range(5))) for port in facts_of(HGX).ports}
    node = replace(with_conf(HGX, NCCL_IB_PKEY="7"), partition_keys=PartitionKeyFacts(short))
    assert status(SETTING, node) is Status.UNKNOWN
    assert status(SETTING, with_conf(node, UCX_IB_PKEY="0x9")) is Status.UNKNOWN


def test_what_a_job_is_set_to_is_read() -> None:
    node = examination_of("azure-nd-h100+pkey-setting-wrong-ucx")
    assert all(isinstance(table, KeyTable) for table in facts_of(node).ports.values())
    assert status(SETTING, node) is Status.FOUND


def test_a_timeout_in_a_jobs_log_follows_from_the_key() -> None:
    host = SimulatedHost("hgx-h100+job-log-errors", clock=lambda: 1000.0)
    FAULTS["pkey-index0-zero"].change_tree(host.tree)
    found = {row.id: row for row in judge(examine_with_jobs(host)).findings}
    assert found["job-log-errors"].part_of == UNUSABLE
    assert not findings_on("hgx-h100+job-log-errors")["job-log-errors"].part_of


def test_env_sets_the_index_that_check_asks_for() -> None:
    node = examination_of("hgx-h100+pkey-index0-zero")
    assert ("NCCL_IB_PKEY", "1") in {(each.name, each.value) for each in recommend(node, ABSENT).settings}
    assert "NCCL_IB_PKEY" not in {each.name for each in recommend(HGX, ABSENT).settings}


@pytest.mark.parametrize(("version", "severity"), [("3.6.5", Severity.CRITICAL), ("3.7.0", Severity.WARNING)])
def test_an_older_nvshmem_uses_index_0_whatever_is_set(version: str, severity: Severity) -> None:
    node = with_variables(with_keys(HGX, 0x7FFF, 0x8001), NCCL_IB_PKEY="1")
    facts = node.processes
    assert not isinstance(facts, Unknown)
    libraries = parse_maps(
        f"0-1 r-xp 0 0:0 0 /usr/lib/libnvshmem_host.so.{version}\n"
        "0-1 r-xp 0 0:0 0 /usr/lib/nvshmem_bootstrap_uid.so.3.0.0\n".encode()
    )
    processes = tuple(replace(each, libraries=libraries) for each in facts.processes)
    assert said(LIMITED, replace(node, processes=replace(facts, processes=processes))).severity is severity
