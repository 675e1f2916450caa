"""One image for the session, one guest a shape; every test finds the guest as if just booted."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.node_vm.dashboard import Dashboard
from tests.node_vm.guest import Guest
from tests.node_vm.image import Image, build
from tests.node_vm.machine import Machine, Wire
from tests.node_vm.prerequisites import complaint
from tests.node_vm.shape import TWO_LEVELS, TWO_SOCKETS
from tests.support.system_packages import free_port


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers share the work by guests, so that each guest is booted once."""
    for item in items:
        if "node_vm" in item.path.parts:
            item.add_marker(pytest.mark.node_vm)
            item.add_marker(pytest.mark.xdist_group(_guests_of(item)))


def _guests_of(item: pytest.Item) -> str:
    names = getattr(item, "fixturenames", ())
    if "wired" in names:
        return "wired"
    others = "two_levels" in item.nodeid or "rebooting" in names
    return "others" if others else "two_sockets"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-recording",
        action="store_true",
        help="replace the recording in tests/recordings by the one that the virtual node gives",
    )


@pytest.fixture(scope="session")
def image() -> Image:
    told = complaint()
    if told is not None:
        pytest.exit(f"test-vm: {told}", returncode=1)
    return build()


@pytest.fixture(scope="session")
def two_sockets(image: Image) -> Iterator[Machine]:
    """2 NUMA nodes × 2 switches × (2 GPUs + 1 NIC)."""
    machine = Machine(image, TWO_SOCKETS)
    yield machine
    machine.end()


@pytest.fixture(scope="session")
def two_levels(image: Image) -> Iterator[Machine]:
    """2 roots, one of an unknown NUMA node × a switch × 2 switches below it × (4 GPUs + 1 NIC)."""
    machine = Machine(image, TWO_LEVELS)
    yield machine
    machine.end()


@pytest.fixture(scope="session")
def rebooting(image: Image) -> Iterator[Machine]:
    """The same shape, for what lasts until the next boot, what outlives it, and half of the long tests."""
    machine = Machine(image, TWO_SOCKETS, may_reboot=True)
    yield machine
    machine.end()


@pytest.fixture(scope="module")  # two guests more take time from the others
def wired(image: Image) -> Iterator[tuple[Machine, Machine]]:
    """Two of them with a wire between their mlx5_0; root of the first may log in to the second."""
    port = free_port()
    with ExitStack() as stack:
        machines = []
        for end in (1, 2):
            machine = Machine(image, TWO_SOCKETS, wire=Wire(end, port))
            stack.callback(machine.end)
            machines.append(machine)
        here, there = machines
        here.guest.write("/root/.ssh/id_ed25519", image.key.read_text())
        here.guest.write("/root/.ssh/config", "Host gpunode2\n  StrictHostKeyChecking accept-new\n")
        here.guest.run("chmod", "600", "/root/.ssh/id_ed25519")
        here.guest.run("ssh", "-o", "BatchMode=yes", "gpunode2", "true")
        yield here, there


@pytest.fixture
def node(two_sockets: Machine) -> Guest:
    """Root on the node with two sockets: the stub modules out, all ports up."""
    two_sockets.guest.run("reset-node")
    return two_sockets.guest


class _Shared:
    """A dashboard that lives through many tests, as an admin's does through a day; paused when nobody looks.

    It would else probe and examine the node at each of their changes, which takes emulation seconds.
    """

    def __init__(self, guest: Guest, columns: int, rows: int) -> None:
        self._guest, self._columns, self._rows = guest, columns, rows
        self._dashboard: Dashboard | None = None

    @contextmanager
    def looked_at(self) -> Iterator[Dashboard]:
        """It reads until the context is left; begun where there is none, or it has ended."""
        dashboard = self._dashboard
        if dashboard is not None and dashboard.has_ended():
            dashboard.__exit__()
            dashboard = None
        if dashboard is None:
            size = {"columns": self._columns, "rows": self._rows}
            dashboard = self._dashboard = Dashboard(self._guest, session=f"shared-{self._columns}", **size)
        else:
            dashboard.press("Space")
        yield dashboard
        if not dashboard.has_ended():
            # Back on the overview, wherever a test that failed has left it.
            for key in ("Escape", "Escape", "Escape", "Space"):
                dashboard.press(key)


@pytest.fixture(scope="session")
def _wide(two_sockets: Machine) -> _Shared:
    return _Shared(two_sockets.guest, 120, 40)


@pytest.fixture(scope="session")
def _small(two_sockets: Machine) -> _Shared:
    return _Shared(two_sockets.guest, 80, 24)


@pytest.fixture
def dashboard(node: Guest, _wide: _Shared) -> Iterator[Dashboard]:
    """Root's dashboard of `node`, 120×40; it has seen what earlier tests did."""
    with _wide.looked_at() as dashboard:
        yield dashboard


@pytest.fixture
def small_dashboard(node: Guest, _small: _Shared) -> Iterator[Dashboard]:
    """The same, 80×24."""
    with _small.looked_at() as dashboard:
        yield dashboard
