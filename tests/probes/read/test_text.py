"""What a text is, what it proves, and what follows from it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.data_files import read_toml
from probes.checks.registry import CHECKS
from probes.messages.message import Weight
from probes.read.kinds import KINDS, Signs
from probes.read.reading import Reading
from probes.read.text import TextReader
from tests.support.nccl_logs import channel, info


def read(text: str | bytes, name: str = "text", size: int = 1 << 20) -> Reading:
    reader = TextReader()
    content = text.encode() if isinstance(text, str) else text
    reader.begin(name)
    for start in range(0, len(content), size):
        reader.feed(content[start : start + size])
    reader.end()
    return reader.reading()


STAGED = info("NCCL version 2.26.2+cuda12.2", channel(gdr=False))
GDR = info("NCCL version 2.26.2+cuda12.2", channel())
MNNVL = info(
    "comm 0x1 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 1",
    "Channel 00/0 : 3[3] -> 4[0] via P2P/MNNVL",
)
IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Port 1:
		State: Initializing
		Physical state: LinkUp
		Rate: 400
		Base lid: 65535
		SM lid: 0
		Link layer: InfiniBand
"""


@pytest.mark.parametrize(
    ("text", "path"), [(STAGED, "host"), (GDR, "gdr"), (STAGED + GDR, "mixed"), (MNNVL, "nvlink")]
)
def test_channels_of_nccl_prove_the_path(text: str, path: str) -> None:
    assert read(text).proven.path == path


def test_the_prefixes_of_collectors_change_nothing() -> None:
    wrapped = "".join(f"[pod/train-0/main] 2026-11-29T02:23:43Z {line}\n" for line in GDR.splitlines())
    assert read(wrapped).proven.path == "gdr"


def test_a_line_of_the_catalogue_says_cause_and_fix_and_where_it_stands() -> None:
    reading = read(
        "first\nhost:1:2 [0] misc/ibvwrap.cc:92 NCCL WARN Call to ibv_open_device failed\n", "job.log"
    )
    (statement,) = [found for found in reading.statements if found.id == "open-device"]
    assert statement.weight is Weight.CRITICAL
    assert "/dev/infiniband" in statement.cause
    assert str(statement.place) == "job.log:2"
    assert reading.exit_status == 2


_NO_CUDA = (
    "ucp_context.c:1321 UCX  WARN  transport 'cuda_copy' is not available, please use one or more of: rc\n"
)
_NIXL_FOLLOWS = "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n"


def test_a_line_that_only_follows_names_the_line_that_says_why() -> None:
    reading = read(f"first\n{_NO_CUDA}Traceback (most recent call last):\n{_NIXL_FOLLOWS}")
    cause, follows = reading.statements
    assert follows.weight is Weight.FOLLOWS
    assert follows.cause == f"Line 2 says why: {cause.title}."
    assert not follows.fix


@pytest.mark.parametrize(
    "between",
    [
        "something else\n" * 40,  # too far
        "plugin: ucp_new_call failed\n",  # nearer, and may be the cause
        _NIXL_FOLLOWS,  # the cause is behind it
    ],
)
def test_a_line_that_only_follows_names_no_line_that_may_be_about_something_else(between: str) -> None:
    first, last = ("", _NO_CUDA) if between == _NIXL_FOLLOWS else (_NO_CUDA, _NIXL_FOLLOWS)
    (follows,) = [
        row for row in read(f"{first}{between}{last}").statements if row.id == "nixl-status-backend"
    ]
    assert "says why" not in follows.cause


@pytest.mark.parametrize(
    ("said", "cure"), [("2x DGX Spark GB10, 7.0.0-1019\n", "kho=off"), ("two nodes\n", "BAR1")]
)
def test_advice_is_for_the_node_that_the_text_names(said: str, cure: str) -> None:
    (row,) = read(f"{said}Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n").statements
    assert cure in row.fix


def test_ports_are_judged_by_the_checks_of_a_node() -> None:
    reading = read(IBSTAT)
    assert [kind.name for kind in reading.kinds] == ["ibstat"]
    assert "ib-port-not-active-no-subnet-manager" in {statement.id for statement in reading.statements}


VIRTUAL = IBSTAT.replace("Initializing", "Down").replace(
    "		State", "		Port GUID: 0x0000000000000000\n		State"
)


@pytest.mark.parametrize(
    "text",
    [
        VIRTUAL,
        IBSTAT.replace("Initializing", "Down").replace("MT4129", "MT4126"),
        VIRTUAL.replace("Port GUID", "Other").replace(
            "	Number", "	Node GUID: 0x0000000000000000\n	Number"
        ),
    ],
)
def test_a_virtual_function_in_ibstat_has_the_words_of_the_checks(text: str) -> None:
    found = {statement.id: statement for statement in read(text).statements}
    waits = found["ib-port-not-active-link-up"]
    assert "a virtual function" in waits.cause
    assert ("GUID was never set" in waits.cause) == ("GUID" in text)
    assert "virt_enabled" in waits.fix
    assert "ib-port-not-active" not in found


IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:0000:0000:0000:0000
	base lid:	 0xffff
	sm lid:		 0x0
	state:		 1: DOWN
	phys state:	 5: LinkUp
	rate:		 100 Gb/sec (4X EDR)
	link_layer:	 InfiniBand
"""
DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.39.1002
	node_guid:			0000:0000:0000:0000
	vendor_part_id:			4126
		port:	1
			state:			PORT_DOWN (1)
			sm_lid:			0
			port_lid:		65535
			phys_state:		LINK_UP (5)
			link_layer:		InfiniBand
"""


@pytest.mark.parametrize("text", [IBSTATUS, DEVINFO])
def test_other_tools_show_the_same_virtual_function(text: str) -> None:
    found = {statement.id: statement for statement in read(text).statements}
    assert "GUID was never set" in found["ib-port-not-active-link-up"].cause


def test_rdma_link_shows_a_port_without_a_subnet_manager() -> None:
    line = (
        "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 65535 sm_lid 0 lmc 0 state INIT "
        "physical_state LINK_UP\n"
    )
    assert "ib-port-not-active-no-subnet-manager" in {found.id for found in read(line).statements}


@pytest.mark.parametrize(
    ("layer", "words"), [("InfiniBand", "no signal"), ("Ethernet", "netdev is set down or has no carrier")]
)
def test_nothing_in_a_text_shows_that_a_port_is_spare(layer: str, words: str) -> None:
    down = IBSTAT.replace("Initializing", "Down").replace("LinkUp", "Polling").replace("InfiniBand", layer)
    (found,) = (found for found in read(down).statements if found.id.startswith("ib-port"))
    assert (found.id, found.weight) == ("ib-port-not-active", Weight.WARNING)
    assert words in found.cause


@pytest.mark.parametrize("gap", [" ", "   "])  # column -t
def test_a_netdev_that_is_down_says_nothing_of_an_infiniband_port(gap: str) -> None:
    lines = "\nmlx5_0 port 1 ==> ib0 (Down)\nmlx5_1 port 1 ==> ens1np0 (Down)\n".replace(" ", gap)
    found = {statement.id: statement for statement in read(lines, "text").statements}
    assert found["ib-port-not-active"].cause.startswith("mlx5_1: ")
    note = found["ibdev2netdev-down"]
    assert note.weight is Weight.NOTE
    assert note.cause.startswith("ib0: ")
    assert str(note.place) == "text:2"


def test_several_kinds_stand_in_one_text() -> None:
    reading = read(f"$ ibstat\n{IBSTAT}$ cat job.log\n{GDR}")
    assert {"ibstat", "NCCL log"} <= {kind.name for kind in reading.kinds}
    assert reading.proven.path == "gdr"


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
# NCCL settings
export NCCL_IB_DISABLE=1
srun python train.py
"""


def test_a_script_is_judged_as_the_linter_does() -> None:
    reading = read(SCRIPT)
    assert [kind.name for kind in reading.kinds] == ["sbatch script"]
    assert "NCCL_IB_DISABLE" in {statement.id for statement in reading.statements}
    assert reading.unread == 0


def test_a_script_in_a_mail_is_found_between_its_fences() -> None:
    reading = read(f"Hello,\nmy job is slow.\n```bash\n{SCRIPT}```\nThis is its log:\n```\n{GDR}```\n")
    assert {"sbatch script", "NCCL log"} <= {kind.name for kind in reading.kinds}
    (statement,) = [found for found in reading.statements if found.id == "NCCL_IB_DISABLE"]
    assert str(statement.place) == "text:7"
    assert reading.proven.path == "gdr"


def test_a_script_without_fault_is_said_to_be_checked() -> None:
    reading = read("#!/bin/bash\nexport NCCL_DEBUG=INFO\nsrun python train.py\n")
    assert reading.exit_status == 0
    assert any("checked" in text for text in reading.shown)


def test_what_is_not_known_is_said() -> None:
    reading = read("Dear all,\nnothing of it is known.\n")
    assert reading.unread == 2
    assert reading.exit_status == 3
    assert not reading.statements


def test_a_fake_address_is_never_shown() -> None:
    shown = " ".join(statement.fix for statement in read(IBSTAT.replace("Initializing", "Down")).statements)
    assert "ffff:" not in shown


@given(st.binary(max_size=3000), st.integers(1, 700))
def test_any_bytes_are_read_or_unknown(content: bytes, size: int) -> None:
    reading = read(content, size=size)
    assert reading.unread <= reading.lines


_PIECES = st.sampled_from(
    [*IBSTAT.splitlines(), *GDR.splitlines(), "", "x" * 100, "  Port 99999:", "link a/1: state"]
)


@given(st.lists(_PIECES, max_size=40))
def test_torn_outputs_are_read_or_unknown(lines: list[str]) -> None:
    assert read("\n".join(lines)).proven.text


def test_each_row_of_the_table_of_statements_has_a_title_and_a_weight_or_is_of_a_check() -> None:
    checks = {check.id for check in CHECKS}
    for name, row in read_toml("probes.read", "statements.toml").items():
        assert row.get("id", name) in checks or {"title", "weight", "program"} <= row.keys(), name


@pytest.mark.parametrize("end", ["{x", "x", "[x", "|x", "link x", "port x", '"x'])
def test_a_long_line_of_blanks_is_tried_in_linear_time(end: str) -> None:
    begins = time.process_time()
    for _ in range(3):
        Signs(KINDS).kind_of(" " * 60_000 + end)
    assert time.process_time() - begins < 5.0


def test_one_pair_that_is_far_apart_proves_no_path() -> None:
    reading = read("NCCL INFO GPU Direct RDMA Disabled for GPU ca000 / HCA 0 (distance 7 > 4)\n")
    assert reading.proven.path == "unknown"
    assert "gdr-distance" in {statement.id for statement in reading.statements}


def test_lines_of_no_known_kind_are_counted_beside_a_log() -> None:
    log = "n1:1:1 [0] NCCL INFO Using network IB\n" * 3
    channels = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA\n" * 3
    prose = "Hello, our job is slow.\nWhat is wrong?\n"
    assert read(prose + log + channels).unread == 2
    table = "Module                  Size  Used by\nnvidia_peermem         16384  0\n"
    assert read(table + log + channels).unread == 0


def test_a_problem_of_a_file_names_the_line_of_the_text() -> None:
    text = "Our job:\n\n```\nexport NCCL_DEBUG=INFO\nexport NCCL_NET_GDR_LEVEL=9\n```\n"
    fixes = [row.fix for row in read(text).statements if "NCCL_NET_GDR_LEVEL" in row.title]
    assert any("line 5" in fix for fix in fixes)


def test_what_a_check_finds_in_a_table_has_the_place_of_the_table() -> None:
    port = "\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tLink layer: InfiniBand\n"
    text = f"CA 'mlx5_1'\n{port}"
    (row,) = (row for row in read(f"My port:\n{text}").statements if row.weight is Weight.WARNING)
    assert str(row.place) == "text:2"


def test_a_line_of_an_unknown_program_says_which_call_failed() -> None:
    reading = read("[handler.hh:67] register mr failed at (0x7f73,2147483648): Cannot allocate memory\n")
    [statement] = reading.statements
    assert statement.weight is Weight.CRITICAL
    assert "ENOMEM" in statement.title
    assert "locked memory" in statement.cause


@pytest.mark.parametrize(
    "line",
    [
        "[INFO] Using GID index 3, no VLAN",
        "rdma: selected device mlx5_0 port 1 gid index 3 (no error)",
        "ibv_create_qp ok, max_inline 220, no SRQ",
        "INFO memory registration cache: hits 10, misses 0, errors 0",
        "DEBUG ibv_reg_mr(addr=0x7f, len=4096) = 0, no dmabuf",
        "INFO open RDMA device mlx5_0 (not bonded)",
        "rdma_connect done, error=0",
        "modify QP to RTS done, errno: 0",
        "0 transport retry counter exceeded errors",
    ],
)
def test_a_line_that_names_a_call_and_no_error_says_nothing(line: str) -> None:
    assert not read(line).statements


def test_what_only_names_a_call_gives_no_cause_beside_a_known_one() -> None:
    known = "libibverbs: Fatal: kernel ABI version 7 doesn't match library version 6.\n"
    vague = "x.cc:1 could not register GPU memory\n"
    alone, beside = (
        {row.id: row for row in read(text).statements}["call-register-memory"]
        for text in (vague, vague + known)
    )
    assert alone.weight is Weight.CRITICAL
    assert beside.weight is Weight.FOLLOWS
    assert not beside.fix


def test_an_error_that_is_not_known_is_named_only_where_nothing_else_is() -> None:
    unknown = "[1.2] [h:1:0] wireup.c:1 UCX  ERROR the frobnicator failed\n"
    assert [row.id for row in read(unknown).statements] == ["unknown-library"]
    known = "libibverbs: Fatal: kernel ABI version 7 doesn't match library version 6.\n"
    assert [row.id for row in read(unknown + known).statements] == ["ib-abi"]


def test_the_first_consequence_is_noted_where_a_text_has_nothing_else() -> None:
    follows = "transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA\n"
    first, *_ = read(follows).statements
    assert first.weight is Weight.NOTE
    assert "not in this text" in first.cause


@pytest.mark.parametrize("version", ["2.25.1", "2.27.3"])
def test_the_version_of_nccl_is_read_in_pytorchs_error(version: str) -> None:
    lines = "graph/topo.h:230 NCCL WARN Could not find NET with id 0\n" + (
        f"DistBackendError: NCCL error in: x.cpp:3376, internal error, NCCL version {version}\n"
    )
    causes = {row.id: row.cause + row.fix for row in read(lines).statements}
    assert ("2.27" in causes["topo-gpu-no-nic"]) is (version == "2.25.1")


@pytest.mark.parametrize(
    "prompt",
    ["[root@gpu7 ~]# ", "gpu7:~$ ", "~$ ", "/ # ", "bash-5.1$ ", "[user@gpu7:/mnt/a]$ ", "root@gpu7:/# "],
)
def test_a_prompt_ends_the_output_before_it(prompt: str) -> None:
    reading = read(f"{prompt}ibstat\n{IBSTAT}{prompt}ulimit -l\n64\n")
    assert {"ibstat", "limits"} <= {kind.name for kind in reading.kinds}
