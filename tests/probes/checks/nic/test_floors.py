"""Firmware below a security fix: the table, trains, virtual functions, other makers, and a site's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.evidence import Severity
from probes.base.site import TRAINS, Site, parse_fixed, set_site
from probes.base.text import version_numbers
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.nic.floors import age_of_table, shipped_floors
from probes.checks.registry import findings
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.queries.finding import Finding, Status
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of
from tui.manual import page
from tui.settings.merge import merge

_LAST = shipped_floors()[0]


def finding_on(examination: Examination) -> Finding:
    (finding,) = findings(examination, only={"firmware-below-floor"})
    return finding


def with_nics(node: str = "hgx-h100", **fields: Maybe[object]) -> Examination:
    """Return a node whose NICs all have these fields."""
    examination = examination_of(node)
    rdma = examination.node.rdma
    assert isinstance(rdma, RdmaFacts)
    devices = tuple(replace(device, **fields) for device in rdma.devices)
    return replace(examination, node=replace(examination.node, rdma=replace(rdma, devices=devices)))


def driver_on(examination: Examination) -> Finding:
    (finding,) = findings(examination, only={"driver-below-floor"})
    return finding


def with_driver(version: Maybe[str]) -> Examination:
    examination = examination_of("hgx-h100")
    gpus = examination.node.gpus
    assert isinstance(gpus, GpuFacts)
    changed = replace(gpus, driver=replace(gpus.driver, version=version))
    return replace(examination, node=replace(examination.node, gpus=changed))


def test_each_row_is_complete_and_in_the_manual() -> None:
    manual = page("versions")
    dates = [floor.published for floor in shipped_floors() if floor.published]
    assert dates == sorted(dates, reverse=True)
    for floor in shipped_floors():
        (component,) = (name for name in TRAINS if getattr(floor, name))
        fixed = getattr(floor, component)
        assert parse_fixed(list(fixed), component)
        assert floor.source.startswith("https://")
        assert floor.published
        assert floor.read
        assert floor.reason.endswith(".")
        text = f"{floor.reason} {floor.cve}. Fixed in {', '.join(fixed)}."
        line = f"| {floor.name}, {floor.published} | {text} <{floor.source}>, read {floor.read} |"
        assert line in manual, f"add to tui/manual/versions.md: {line}"
    assert f"The tables are of {max(floor.read for floor in shipped_floors() if floor.read):%Y-%m}." in manual


def test_the_newest_bulletin_has_the_fixes_of_all_older_ones() -> None:
    """The finding names only the first row: no older one may ask for a newer version of a train."""
    for older in shipped_floors()[1:]:
        for version in older.firmware:
            train = version_numbers(version)[:2]
            newest = [text for text in _LAST.firmware if version_numbers(text)[:2] == train]
            assert not newest or version_numbers(newest[0]) >= version_numbers(version)


@pytest.mark.parametrize(
    ("firmware", "fixes"),
    [
        ("28.43.8002", ()),
        ("28.43.8001", ("28.43.8002",)),
        ("28.43.2566", ("28.43.8002",)),
        ("28.45.1020", ("28.46.3008",)),
        ("28.44.1036", ("28.46.3008",)),
        ("28.41.1000", ("28.43.8002", "28.46.3008")),
        ("28.36.1010", ("28.39.8002", "28.43.8002", "28.46.3008")),
        ("28.35.8008", ()),
        ("28.46.3048", ()),
        ("28.47.1026", ()),
        ("28.49.1014", ()),
        ("20.43.8004", ()),
        ("20.42.1000", ("20.43.8002",)),
        ("16.35.4554", ("16.35.8002",)),
        ("40.46.1006", ("40.46.3008",)),
        ("40.44.0212", ("40.46.3008",)),
        ("12.28.4702", ()),
        ("12.28.2006", ("12.28.4702",)),
        ("14.32.1010", ("14.32.1908",)),
        ("14.32.1908", ()),
        ("32.45.1020", ("32.46.3008",)),
        ("82.48.1000", ()),
        ("", ()),
    ],
)
def test_a_fix_holds_within_its_train(firmware: str, fixes: tuple[str, ...]) -> None:
    """NVIDIA bulletin 5699: 35.8002, 39.8002, 43.8002 and 46.3008 “or newer”; 28.4702 and 32.1908."""
    assert _LAST.fixes(firmware) == fixes


@given(st.text(max_size=40))
def test_any_text_is_a_version(text: str) -> None:
    assert set(_LAST.fixes(text)) <= set(_LAST.firmware)
    assert driver_on(with_driver(text)).status in (Status.PASSED, Status.UNKNOWN, Status.FOUND)
    assert finding_on(with_nics(firmware=text)).status in (Status.PASSED, Status.UNKNOWN, Status.FOUND)


@pytest.mark.parametrize("node", SIMULATED_NAMES)
def test_healthy_nodes_pass(node: str) -> None:
    finding = finding_on(examination_of(node))
    assert finding.status is Status.PASSED
    assert finding.evidence[-1].value == "as of 2026-11"


def test_one_finding_names_all_boards_and_warns_where_virtual_functions_exist() -> None:
    finding = finding_on(examination_of("hgx-h100+firmware-below-floor"))
    assert finding.severity is Severity.WARNING
    assert len(finding.devices) == 8
    assert "(board MT_0000000838): 28.43.2566, fixed in 28.43.8002. VFs exist on mlx5_0." in finding.cause
    assert any("CVE-2025-23350" in line.value for line in finding.evidence)
    assert finding.fix is not None
    why = [step.why for step in finding.fix.steps]
    assert any("mlxfwmanager --online -u -d 0000:1a:00.0" in text for text in why)
    assert any("mlxfwreset -d 0000:1a:00.0 reset" in text for text in why)
    assert why.index("Drain the node") < len(why) - 2


def test_it_is_a_note_without_virtual_functions() -> None:
    finding = finding_on(examination_of("dgx-a100+firmware-below-floor-without-vfs"))
    assert finding.severity is Severity.NOTE
    assert "20.39.3560, fixed in 20.39.8002. These NICs have no VFs now." in finding.cause


def test_virtual_functions_that_cannot_be_read_are_not_missing() -> None:
    examination = examination_of("hgx-h100+firmware-below-floor")
    late = Unknown(Reason.TIMED_OUT, "/sys/bus/pci/devices")
    finding = finding_on(replace(examination, node=replace(examination.node, pci=late)))
    assert finding.severity is Severity.NOTE
    assert "VFs are unknown (timed out" in finding.cause


def test_only_the_maker_of_the_machine_has_firmware_for_its_boards() -> None:
    finding = finding_on(examination_of("pcie-l40s+firmware-below-floor-oem"))
    assert "28.45.1020. Its train 45 has no fix: move to 28.46.3008." in finding.cause
    assert finding.fix is not None
    why = " ".join(step.why for step in finding.fix.steps)
    assert "Ask the maker of the machine for firmware of DEL0000000060" in why
    assert "--online" not in why


def test_a_dgx_spark_gets_its_firmware_by_fwupd() -> None:
    finding = finding_on(with_nics("dgx-spark", firmware="28.45.4028"))
    assert finding.fix is not None
    assert "fwupdmgr update" in " ".join(step.why for step in finding.fix.steps)


def test_a_guest_is_not_told_to_update_its_host() -> None:
    """The virtual functions of cloud-vm have 28.41.1000."""
    finding = finding_on(examination_of("cloud-vm"))
    assert "whose firmware is their host's" in finding.evidence[0].value


@pytest.mark.parametrize(
    "firmware", [Unknown(Reason.TIMED_OUT, "/sys/late"), Unknown(Reason.NOT_RECORDED, "fw_ver"), "28", "?"]
)
def test_unknown_firmware_is_unknown(firmware: Maybe[str]) -> None:
    assert finding_on(with_nics(firmware=firmware)).status is Status.UNKNOWN


def test_a_nic_with_an_unknown_driver_is_not_left_out() -> None:
    late = Unknown(Reason.TIMED_OUT, "driver")
    assert finding_on(with_nics(firmware="28.43.2566", driver=late)).status is Status.FOUND


def test_numbers_of_other_makers_are_not_compared() -> None:
    assert finding_on(with_nics(firmware="20.6.143", driver="bnxt_en")).status is Status.PASSED


@pytest.mark.parametrize(("year", "is_old"), [(1970, False), (2026, False), (2027, False), (2028, True)])
def test_the_table_says_that_it_is_old(year: int, is_old: bool) -> None:
    at = datetime(year, 6, 1, tzinfo=timezone.utc).timestamp()
    assert age_of_table(at).startswith("as of 2026-11")
    assert ("over a year old" in age_of_table(at)) is is_old
    examination = replace(examination_of("hgx-h100"), taken_at=at)
    assert finding_on(examination).evidence[-1].value == age_of_table(at)


@pytest.fixture
def floors_of_site() -> Iterator[Callable[[str], None]]:
    """Put the floors of a configuration in force."""

    def use(text: str) -> None:
        row = f'[[floor]]\n{text}\nreason = "Reads time out."\nsource = "RMA 17"\n'
        found = merge([("/etc/gdrtop/config.toml", True, row.encode())], {})
        assert not found.errors
        set_site(Site(floors=found.floors))

    yield use
    set_site(Site())


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ('firmware = ["28.43.9000"]', "28.43.8002, fixed in 28.43.9000"),
        ('firmware = ["28.43.8002"]', ""),
        ('firmware = ["28.47.1026"]', "Its train 43 has no fix: move to 28.47.1026"),
        ('board = "MT_0000000838"\nfirmware = ["28.43.9000"]', "28.43.9000"),
        ('board = "MT_0000000001"\nfirmware = ["28.43.9000"]', ""),
    ],
)
def test_rows_of_a_site(row: str, word: str, floors_of_site: Callable[[str], None]) -> None:
    floors_of_site(row)
    finding = finding_on(examination_of("hgx-h100"))
    assert (finding.status is Status.FOUND) == bool(word)
    if word:
        assert word in finding.cause
        assert (finding.severity, finding.impact) == (Severity.WARNING, "Reads time out.")
        assert any(line.source == "RMA 17" for line in finding.evidence)
        assert finding.fix is not None


def test_a_site_requires_a_driver(floors_of_site: Callable[[str], None]) -> None:
    """Unlike a bulletin's, its row is about all older branches."""
    floors_of_site('driver = ["570.211.01", "580.159.03"]')
    assert driver_on(with_driver("580.159.03")).status is Status.PASSED
    for version in ("570.195.03", "565.57.01"):
        finding = driver_on(with_driver(version))
        assert finding.severity is Severity.WARNING
        assert finding.impact.startswith("Reads time out.")
        assert "fixed in 570.211.01" in finding.cause
    assert finding_on(examination_of("hgx-h100")).status is Status.PASSED


def test_a_row_of_a_site_does_not_hide_a_bulletin(floors_of_site: Callable[[str], None]) -> None:
    floors_of_site('firmware = ["28.43.3000"]')
    finding = finding_on(examination_of("hgx-h100+firmware-below-floor"))
    assert "fixed in 28.43.3000" in finding.cause
    assert "fixed in 28.43.8002" in finding.cause
    assert "Reads time out. A user of a virtual function" in finding.impact


@pytest.mark.parametrize(
    ("version", "fix", "bulletin"),
    [
        ("535.309.01", "", "as of 2026-11"),
        ("535.288.01", "535.309.01", "5821"),
        ("550.127.05", "550.163.01", "5630"),
        ("560.35.03", "", "it names no fix of branch 560"),
        ("570.195.03", "570.211.01", "5747"),
        ("570.211.01", "", "it names no fix of branch 570"),
        ("575.51.02", "", "it names no fix of branch 575"),
        ("580.95.05", "580.159.03", "5821"),
        ("580.159.03", "", "as of 2026-11"),
        ("590.44.01", "590.48.01", "5747"),
        ("595.58.03", "595.71.05", "5821"),
        ("595.71.05", "", "as of 2026-11"),
        ("610.57.04", "", "as of 2026-11"),
    ],
)
def test_a_driver_is_compared_with_the_newest_bulletin_about_its_branch(
    version: str, fix: str, bulletin: str
) -> None:
    finding = driver_on(with_driver(version))
    assert (finding.status is Status.FOUND) == bool(fix)
    assert any(bulletin in line.value for line in finding.evidence)
    if fix:
        assert (finding.severity, finding.cause) == (
            Severity.NOTE,
            f"The driver is {version}, fixed in {fix}.",
        )
    else:
        assert ("names no fix" in bulletin) == any("no fix" in line.value for line in finding.evidence)


@pytest.mark.parametrize("node", SIMULATED_NAMES)
def test_healthy_nodes_have_drivers_with_the_fixes(node: str) -> None:
    assert driver_on(examination_of(node)).status is Status.PASSED


def test_an_unread_driver_is_unknown_and_one_that_is_not_there_is_fine() -> None:
    for unread in (Unknown(Reason.TIMED_OUT, "/proc"), "", "new"):
        assert driver_on(with_driver(unread)).status is Status.UNKNOWN
    assert driver_on(with_driver(Unknown(Reason.NOT_THERE, "/proc"))).status is Status.PASSED
