"""Ports with a listener, and the first free port."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.network.routes import free_port, listening
from probes.host.machine.local import LocalHost
from tests.support.trees import write

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(port: int, state: str = "0A", address: str = "00000000", far: str = "00000000:0000") -> str:
    return f"   0: {address}:{port:04X} {far} {state} 00000000:00000000 00:00000000 00000000 0 0 1 1 0 100\n"


def tree(root: Path, *lines: str, v6: str | None = HEADER) -> LocalHost:
    write(root, "/proc/net/tcp", HEADER + "".join(lines))
    if v6 is not None:
        write(root, "/proc/net/tcp6", v6)
    return LocalHost(str(root))


def test_only_listeners_count(tmp_path: Path) -> None:
    connected = line(18516, "01", far="0100007F:8888")
    host = tree(tmp_path, line(22), line(18515), connected, line(18517, "06"))
    assert listening(host) == {22: "/proc/net/tcp", 18515: "/proc/net/tcp"}


def test_ipv6_counts_too(tmp_path: Path) -> None:
    far = "0" * 32 + ":0000"
    host = tree(tmp_path, v6=HEADER + line(18515, address="0" * 32, far=far))
    assert listening(host) == {18515: "/proc/net/tcp6"}


def test_a_kernel_without_ipv6(tmp_path: Path) -> None:
    assert listening(tree(tmp_path, line(22), v6=None)) == {22: "/proc/net/tcp"}


def test_where_the_table_is_not_there_nothing_is_known(tmp_path: Path) -> None:
    host = LocalHost(str(tmp_path))
    for answer in (listening(host), free_port(host, 18515)):
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.NOT_THERE


def test_the_first_free_port(tmp_path: Path) -> None:
    host = tree(tmp_path, line(18515), line(18516), line(18518))
    assert free_port(host, 18515) == 18517
    assert free_port(host, 18519) == 18519


def test_when_all_are_taken_it_says_so(tmp_path: Path) -> None:
    answer = free_port(tree(tmp_path, *(line(port) for port in range(100, 105))), 100, 5)
    assert isinstance(answer, Unknown)
    assert "100 to 104" in answer.detail


class _Table:
    """A host with one file."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, path: str, limit: int = 0) -> str:
        return self.text


@given(
    st.text(max_size=300) | st.lists(st.sampled_from([HEADER, line(5), "0: ", "\x00", "A" * 40])).map("".join)
)
def test_no_table_does_any_harm(text: str) -> None:
    ports = listening(_Table(text))  # type: ignore[arg-type]
    assert not isinstance(ports, Unknown)
    assert all(0 <= port < 65536 for port in ports)
