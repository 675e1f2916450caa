"""What can be measured here, with version and CUDA; how to get what is missing."""

from dataclasses import replace

from probes.bandwidth.planning.inventory import Available, inventory, packages_of_tests
from probes.base.unknown import Reason, Unknown
from probes.facts.system.tool_names import PERFTEST, TEST_TOOLS
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.bandwidth_nodes import lacking, node


def tool(examination: Examination, name: str) -> Available:
    return next(tool for tool in inventory(examination) if tool.tool == name)


def test_every_tool_is_told_of_whether_it_is_here_or_not() -> None:
    for examination in (node(), lacking("hgx-h100", *TEST_TOOLS)):
        assert [tool.tool for tool in inventory(examination)] == list(TEST_TOOLS)


def test_perftest_tells_its_version_and_cuda() -> None:
    write = tool(node(), "ib_write_bw")
    assert (write.path, write.version) == ("/usr/bin/ib_write_bw", "6.23")
    assert write.gpu_memory is True
    assert write.dmabuf is True
    assert (write.missing, write.install_hint) == ("", "")


def with_package(name: str, tool: str) -> Available:
    host = SimulatedHost(name, clock=lambda: 1000.0)
    examination = examine(host)
    found = inventory(examination, packages_of_tests(host, examination))
    return next(entry for entry in found if entry.tool == tool)


def test_others_are_known_by_their_package() -> None:
    assert with_package("hgx-h100", "gdrcopy_copybw").version == "2.5-1 (package gdrcopy-tests)"


def test_what_is_of_no_package_does_not_tell_its_version() -> None:
    # dpkg knows of no owner, and rpm
    for copies in (with_package("hgx-h100", "nvbandwidth"), with_package("pcie-l40s", "all_reduce_perf")):
        assert copies.can_run
        assert isinstance(copies.version, Unknown)
        assert "not part of a package" in str(copies.version)
        assert "only when a test runs" in str(copies.version)


def test_where_nobody_has_asked_no_package_is_denied() -> None:
    version = str(tool(node(), "gdrcopy_copybw").version)
    assert "only when a test runs" in version
    assert "not part of a package" not in version


def test_what_takes_part_is_told_of_other_tests() -> None:
    assert "no NIC is involved" in tool(node(), "nvbandwidth").purpose.not_proven


def test_a_build_without_cuda_says_so_and_how_to_get_one() -> None:
    for name in PERFTEST:
        plain = tool(lacking("hgx-h100", cuda=False, dmabuf=False), name)
        assert plain.can_run
        assert "without CUDA" in plain.missing
        assert "CUDA_H_PATH" in plain.install_hint
        assert "apt install" not in plain.install_hint
        assert "GPU memory" in plain.purpose.not_proven


def test_a_build_without_dmabuf_says_so() -> None:
    assert "without DMA-BUF" in tool(lacking("hgx-h100", dmabuf=False), "ib_read_bw").missing


def test_what_is_missing_says_how_to_get_it() -> None:
    missing = tool(lacking("hgx-h100", "gdrcopy_copybw", "ib_write_lat"), "gdrcopy_copybw")
    assert not missing.can_run
    assert missing.missing == "not installed"
    assert "gdrcopy" in missing.install_hint
    assert "install perftest" in tool(lacking("hgx-h100", "ib_write_lat"), "ib_write_lat").install_hint


def test_what_is_not_known_is_not_told_as_missing() -> None:
    lost = Unknown(Reason.NOT_RECORDED, "/usr", "this tree has no /usr")
    for tool in inventory(replace(node(), tools=lost)):
        assert not tool.can_run
        assert "not recorded" in tool.missing
        assert tool.install_hint == ""
