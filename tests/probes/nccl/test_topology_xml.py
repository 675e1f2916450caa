"""NCCL's topology XML: what is read, what is refused, and that what is written reads the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.nccl.topology_file import LIMIT_BYTES, Element, endpoint_ids, file_tree, parse_system, xml_text
from tests.support.machines import machine_file, machine_files

FILES = [path.name for path in machine_files("nccl_xml", "*topo*.xml")] or ["not here"]
XML = """<system version="1">
  <cpu numaid="3" arch="x86_64"><pci busid="ffff:ff:01.0" class="0x060400" link_width="16">
    <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s"/>
    <pci class="0x020700" busid="010A:00:00.0"/>
  </pci></cpu></system>"""


def parsed(text: str) -> Element:
    system = parse_system(text, "topo.xml")
    assert isinstance(system, Element), system
    return system


def refusal(text: str) -> str:
    system = parse_system(text, "topo.xml")
    assert isinstance(system, Unknown)
    assert system.reason is Reason.MALFORMED
    return system.detail


def test_gpus_and_nics_are_listed_and_bridges_are_not() -> None:
    assert endpoint_ids(parsed(XML)) == ("0001:00:00.0", "010a:00:00.0")


def test_devices_stand_below_the_switches_and_the_numa_node_of_the_file() -> None:
    seats = file_tree("topo.xml", parsed(XML)).seats
    assert (seats["0001:00:00.0"].switches, seats["0001:00:00.0"].cpu) == (("ffff:ff:01.0",), 3)
    assert seats["ffff:ff:01.0"].switches == ()


@pytest.mark.parametrize("name", FILES)
def test_a_real_file_reads_the_same_after_writing(name: str) -> None:
    system = parsed(machine_file(f"nccl_xml/{name}").read_text())
    assert parsed(xml_text(system)) == system


def test_nccls_own_dump_is_written_back_byte_by_byte() -> None:
    text = machine_file("nccl_xml/oci-bm-h100-8-topo.xml").read_text().lstrip()
    assert xml_text(parsed(text)) == text


def test_values_with_markup_are_escaped() -> None:
    system = Element("system", {"version": "1", "name": "a<b>&\"c'"})
    assert parsed(xml_text(system)) == system


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello", "not well-formed"),
        ("", "not well-formed"),
        ("<topology/>", "no <system>"),
        ('<system version="2"/>', "NCCL reads version 1"),
        ("<system/>", "version missing"),
        ('<!DOCTYPE s [<!ENTITY e "x">]><system version="1"/>', "document type"),
        ('<!DOCTYPE s SYSTEM "file:///etc/shadow"><system version="1"/>', "document type"),
        ("<system version='1'><cpu>" + "<pci>" * 40 + "</pci>" * 40 + "</cpu></system>", "levels"),
        ("<a>" * 40 + "</a>" * 40, "levels"),
        ("<system version='1'>" + "<cpu/>" * 200 + "</system>", "inside one <system>"),
        ("<system version='1'>" + "<x/>" * 5000 + "</system>", "elements"),
        (f"<system version='1' name='{'x' * 300}'/>", "characters"),
        ("<system version='1' " + " ".join(f"a{n}=''" for n in range(20)) + "/>", "attributes"),
        (" " * LIMIT_BYTES + "<system/>", "MiB"),
    ],
)
def test_what_is_no_topology_is_refused_with_the_reason(text: str, why: str) -> None:
    assert why in refusal(text)


def test_elements_that_nccl_ignores_are_left_out() -> None:
    system = parsed('<system version="1"><gpu/><x><cpu numaid="7"/></x><cpu numaid="0"/></system>')
    assert [child.get("numaid") for child in system.children] == ["0"]


def test_control_characters_and_escapes_do_not_get_through() -> None:
    system = parsed('<system version="1" name="a&#x9b;31m&#x202e;"/>')
    assert system.get("name").isprintable()


@pytest.mark.slow
@given(st.text(max_size=300), st.text(max_size=60))
def test_no_text_crashes(text: str, inside: str) -> None:
    for candidate in (text, f"<pci {text}>", XML.replace("0x0604", inside), f"<system version='1'>{text}"):
        system = parse_system(candidate, "topo.xml")
        if isinstance(system, Element):
            file_tree("topo.xml", system)
            assert parsed(xml_text(system)) == system
