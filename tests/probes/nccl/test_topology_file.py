"""NCCL's topology files."""

from dataclasses import replace
from pathlib import Path

from probes.base.unknown import Reason, Unknown
from probes.facts.jobs.processes import ProcessFacts  # fmt: skip
from probes.facts.jobs.processes import probe as probe_processes
from probes.host.machine.local import LocalHost
from probes.nccl.topology_file import (
    TopologyFile,
    TopologyFileFacts,
    file_of_new_jobs,
    parse_system,
    probe,
    tree_in_use,
)

XML = """<system version="1">
  <cpu numaid="0" arch="x86_64"><pci busid="ffff:ff:01.0" class="0x060400" link_width="16">
    <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s"/>
    <pci class="0x020700" busid="0101:00:00.0"/>
  </pci></cpu></system>"""


def _tree(root: Path, named: str) -> LocalHost:
    process = root / "proc/77"
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("/dev/nvidia0")
    (process / "maps").write_text("")
    (process / "environ").write_bytes(f"NCCL_TOPO_FILE={named}\0".encode())
    (process / "root/opt").mkdir(parents=True)
    (process / "root/opt/topo.xml").write_text(XML)
    return LocalHost(str(root))


def test_a_file_is_read_where_the_process_sees_it(tmp_path: Path) -> None:
    host = _tree(tmp_path, "/opt/topo.xml")
    by_itself, named = probe(host, probe_processes(host)).files
    assert isinstance(by_itself.endpoints, Unknown)
    assert by_itself.endpoints.reason is Reason.NOT_THERE
    assert (named.path, named.pid) == ("/proc/77/root/opt/topo.xml", 77)
    assert named.endpoints == ("0001:00:00.0", "0101:00:00.0")


def test_a_path_does_not_lead_out_of_the_process(tmp_path: Path) -> None:
    host = _tree(tmp_path, "/../../../../etc/passwd")
    assert probe(host, probe_processes(host)).files[1].path == "/proc/77/root/etc/passwd"


def test_what_is_no_topology_is_malformed(tmp_path: Path) -> None:
    host = _tree(tmp_path, "/opt/topo.xml")
    (tmp_path / "proc/77/root/opt/topo.xml").write_text("hello")
    endpoints = probe(host, probe_processes(host)).files[1].endpoints
    assert isinstance(endpoints, Unknown)
    assert endpoints.reason is Reason.MALFORMED


def test_many_processes_do_not_make_many_reads(tmp_path: Path) -> None:
    host = _tree(tmp_path, "/opt/topo.xml")
    facts = probe_processes(host)
    assert isinstance(facts, ProcessFacts)
    many = replace(facts, processes=facts.processes * 1000)
    assert len(probe(host, many).files) == 16


class AtHome(LocalHost):
    """A tree whose user's home is /home/ann."""

    def environment(self, name: str) -> str | Unknown:
        return "/home/ann" if name == "HOME" else Unknown(Reason.NOT_THERE, name)


def _conf(root: Path, path: str, named: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"NCCL_DEBUG=WARN\nNCCL_TOPO_FILE={named}\n")


def test_the_file_that_nccl_conf_names_is_read(tmp_path: Path) -> None:
    """Azure's images name it there."""
    _conf(tmp_path, "/etc/nccl.conf", "/opt/microsoft/ndv5/topo.xml")
    _conf(tmp_path, "/opt/microsoft/ndv5/topo.xml", "")
    (tmp_path / "opt/microsoft/ndv5/topo.xml").write_text(XML)
    files = probe(AtHome(str(tmp_path)), Unknown(Reason.NOT_RECORDED)).files
    assert [(file.path, file.pid) for file in files[1:]] == [("/opt/microsoft/ndv5/topo.xml", None)]
    assert files[1].endpoints == ("0001:00:00.0", "0101:00:00.0")


def test_the_users_own_nccl_conf_stands_before_the_nodes(tmp_path: Path) -> None:
    _conf(tmp_path, "/etc/nccl.conf", "/opt/topo.xml")
    _conf(tmp_path, "/home/ann/.nccl.conf", "/home/ann/topo.xml")
    files = probe(AtHome(str(tmp_path)), Unknown(Reason.NOT_RECORDED)).files
    assert [file.path for file in files[1:]] == ["/home/ann/topo.xml"]
    assert isinstance(files[1].endpoints, Unknown)


def _facts(*files: tuple[str, int | None, str]) -> TopologyFileFacts:
    read = []
    for path, pid, text in files:
        system = parse_system(text, path) if text else Unknown(Reason.NOT_THERE, path)
        read.append(
            TopologyFile(path, pid, system)
            if isinstance(system, Unknown)
            else TopologyFile(path, pid, (), system)
        )
    return TopologyFileFacts(tuple(read))


VIRTUAL, CONF = "/var/run/nvidia-topologyd/virtualTopology.xml", "/opt/topo.xml"
OTHER = XML.replace("0001:00", "0002:00")


def test_the_default_file_is_not_read_where_nccl_conf_names_another() -> None:
    """NCCL opens one file: a missing one of nccl.conf does not bring the default back."""
    named = file_of_new_jobs(_facts((VIRTUAL, None, XML), (CONF, None, OTHER)))
    assert named is not None
    assert named.path == CONF
    assert tree_in_use(_facts((VIRTUAL, None, XML), (CONF, None, ""))) is None
    default = tree_in_use(_facts((VIRTUAL, None, XML)))
    assert default is not None
    assert (default.path, "0001:00:00.0" in default.seats) == (VIRTUAL, True)
    assert file_of_new_jobs(_facts((VIRTUAL, None, ""))) is None


def test_the_jobs_file_is_used_where_all_jobs_have_the_same() -> None:
    missing = (VIRTUAL, None, "")
    same = tree_in_use(_facts(missing, ("/proc/7/root/t", 7, XML), ("/proc/8/root/t", 8, XML)))
    assert same is not None
    assert same.path == "/proc/7/root/t"
    assert tree_in_use(_facts(missing, ("/proc/7/root/t", 7, XML), ("/proc/8/root/t", 8, OTHER))) is None
    assert tree_in_use(Unknown(Reason.NEEDS_ROOT)) is None
