"""Which services run, and what is known if systemd cannot be asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.services import SERVICES, Service, ServiceState, parse_show, probe
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from tests.support.trees import link, write

UNITS = "/usr/lib/systemd/system"
GROUPS = "/sys/fs/cgroup/system.slice"


class Systemd(LocalHost):
    """A tree with a given answer of systemctl."""

    def __init__(self, root: Path, answer: Maybe[tuple[int, str]]) -> None:
        super().__init__(str(root))
        self._answer = answer
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked.append(tuple(argv))
        if isinstance(self._answer, Unknown):
            return self._answer
        status, text = self._answer
        return CommandOutput(tuple(argv), status, text, "" if status == 0 else "not booted with systemd")


NOBODY = Unknown(Reason.NOT_THERE, "systemctl", "not installed")


def services(root: Path, answer: Maybe[tuple[int, str]] = NOBODY) -> dict[str, Service]:
    return probe(Systemd(root, answer)).services


def test_a_running_service_needs_no_command(tmp_path: Path) -> None:
    write(tmp_path, f"{UNITS}/nvidia-fabricmanager.service", "[Service]\n")
    link(tmp_path, "/etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service", "x")
    write(tmp_path, f"{GROUPS}/nvidia-fabricmanager.service/cgroup.procs", "812\n")
    host = Systemd(tmp_path, NOBODY)
    service = probe(host).services["nvidia-fabricmanager"]
    assert (service.state, service.enabled) == (ServiceState.ACTIVE, True)
    assert host.asked == []


def test_a_failed_service_is_known_from_systemd(tmp_path: Path) -> None:
    for name in ("nvidia-fabricmanager", "openibd"):
        write(tmp_path, f"{UNITS}/{name}.service", "[Service]\n")
    write(tmp_path, f"{GROUPS}/other.service/cgroup.procs", "1\n")
    text = "Id=nvidia-fabricmanager.service\nActiveState=failed\n\nId=openibd.service\nActiveState=active\n"
    host = Systemd(tmp_path, (0, text))
    found = probe(host).services
    assert found["nvidia-fabricmanager"].state is ServiceState.FAILED
    assert found["openibd"].state is ServiceState.ACTIVE
    assert len(host.asked) == 1


def test_a_service_that_is_not_installed_is_not_a_stopped_one(tmp_path: Path) -> None:
    write(tmp_path, f"{GROUPS}/other.service/cgroup.procs", "1\n")
    for service in services(tmp_path).values():
        assert isinstance(service.path, Unknown)
        assert isinstance(service.state, Unknown)
        assert service.state.reason is Reason.NOT_THERE


def test_without_systemd_a_daemon_without_process_is_stopped_and_a_oneshot_unknown(tmp_path: Path) -> None:
    for name in ("nvidia-persistenced", "openibd"):
        write(tmp_path, f"{UNITS}/{name}.service", "[Service]\n")
    write(tmp_path, f"{GROUPS}/other.service/cgroup.procs", "1\n")
    found = services(tmp_path, (1, ""))
    assert found["nvidia-persistenced"].state is ServiceState.INACTIVE
    assert isinstance(found["openibd"].state, Unknown)


def test_a_systemd_that_does_not_answer_proves_nothing(tmp_path: Path) -> None:
    write(tmp_path, f"{UNITS}/nvidia-persistenced.service", "[Service]\n")
    found = services(tmp_path, Unknown(Reason.TIMED_OUT, "systemctl"))
    state = found["nvidia-persistenced"].state
    assert isinstance(state, Unknown)
    assert state.reason is Reason.TIMED_OUT


def test_without_control_groups_the_names_of_processes_tell(tmp_path: Path) -> None:
    for name in ("nvidia-fabricmanager", "nvidia-persistenced"):
        write(tmp_path, f"{UNITS}/{name}.service", "[Service]\n")
    write(tmp_path, "/proc/1/comm", "systemd\n")
    write(tmp_path, "/proc/812/comm", "nv-fabricmanage\n")
    found = services(tmp_path)
    assert found["nvidia-fabricmanager"].state is ServiceState.ACTIVE
    assert found["nvidia-persistenced"].state is ServiceState.INACTIVE


def test_fabric_manager_of_a_driver_container_runs_though_nothing_is_installed(tmp_path: Path) -> None:
    write(tmp_path, f"{GROUPS}/kubelet.service/cgroup.procs", "1\n")
    write(tmp_path, "/proc/1/comm", "systemd\n")
    write(tmp_path, "/proc/812/comm", "nv-fabricmanage\n")
    service = services(tmp_path)["nvidia-fabricmanager"]
    assert service.state is ServiceState.ACTIVE
    assert isinstance(service.path, Unknown)


def test_a_container_does_not_see_the_nodes_services(tmp_path: Path) -> None:
    write(tmp_path, f"{UNITS}/nvidia-fabricmanager.service", "[Service]\n")
    write(tmp_path, "/proc/1/comm", "bash\n")
    assert isinstance(services(tmp_path)["nvidia-fabricmanager"].state, Unknown)


def test_a_dump_without_processes_does_not_report_a_service_as_stopped(tmp_path: Path) -> None:
    write(tmp_path, f"{UNITS}/nvidia-fabricmanager.service", "[Service]\n")
    assert isinstance(services(tmp_path)["nvidia-fabricmanager"].state, Unknown)


def test_a_script_of_old_ofed(tmp_path: Path) -> None:
    write(tmp_path, "/etc/init.d/nv_peer_mem", "#!/bin/sh\n")
    link(tmp_path, "/etc/rc3.d/S01nv_peer_mem", "../init.d/nv_peer_mem")
    service = services(tmp_path)["nv_peer_mem"]
    assert (service.path, service.enabled) == ("/etc/init.d/nv_peer_mem", True)


def test_every_service_is_there(tmp_path: Path) -> None:
    assert set(services(tmp_path)) == set(SERVICES)


@given(st.text())
def test_no_text_stops_the_parser(text: str) -> None:
    parse_show(text)
    parse_show(f"Id=x.service\nActiveState={text}")
