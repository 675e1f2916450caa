"""Commands on a simulated node, except those for modules: effects and messages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Unknown
from probes.facts.pci.functions import DEVICES
from probes.facts.system.services import ServiceFacts, ServiceState
from probes.facts.system.services import probe as probe_services
from probes.host.nvml import NvmlFacts
from probes.simulation.commands.catalogue import HANDLERS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.pci import ACS_CONTROL
from tests.support.simulated_commands import end_job, found_on, node, run

PORT = "0000:17:00.0"  # above a GPU of hgx-h100


def acs_control(host: SimulatedHost) -> int:
    content = host.read_bytes(f"{DEVICES}/{PORT}/config")
    assert isinstance(content, bytes)
    return int.from_bytes(content[ACS_CONTROL : ACS_CONTROL + 2], "little")


def state_of(host: SimulatedHost, service: str) -> Maybe[ServiceState]:
    facts = probe_services(host)
    assert isinstance(facts, ServiceFacts)
    return facts.services[service].state


def persistence(host: SimulatedHost) -> set[object]:
    facts = host.nvml()
    assert isinstance(facts, NvmlFacts)
    return {getattr(gpu, "persistence", None) for gpu in facts.gpus}


@pytest.mark.parametrize(
    "command",
    [
        "reboot",
        "dkms autoinstall",
        "dracut --force",
        "git clone x",
        "kubectl get pods",
        "/tmp/modprobe x",
        "zypper install nano",
        "dnf install nvidia-open",
        "nvidia-smi --gpu-reset",
        "rdma_topo write-grub-acs",
        "ib_write_bw -d mlx5_0",
    ],
)
def test_unsupported_commands_fail(command: str) -> None:
    status, text = run(node("gb200+acs-direct-nic"), command)
    assert status == 127
    assert text.endswith("not available on a simulated node. Nothing was changed.")


def test_an_empty_command_fails() -> None:
    assert node("cloud-vm").perform(()).exit_status == 127


# setpci


def test_setpci_changes_only_the_bits_of_the_mask() -> None:
    host = node("hgx-h100+acs-on")
    assert acs_control(host) == 0x1D
    assert run(host, f"setpci -s {PORT} ECAP_ACS+6.w=0000:000c") == (0, "")
    assert acs_control(host) == 0x11
    assert run(host, f"setpci -s {PORT} ECAP_ACS+6.w=000c:000c") == (0, "")
    assert acs_control(host) == 0x1D


def test_setpci_accepts_several_registers() -> None:
    host = node("hgx-h100")
    status, text = run(host, f"setpci -s {PORT} VENDOR_ID DEVICE_ID ECAP_ACS+6.w CAP_EXP+8.w")
    assert status == 0
    assert text.splitlines()[:3] == ["1000", "c030", "0001"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"-s {PORT} ECAP_NOSUCH+6.w=0", 'Unknown register "ECAP_NOSUCH"'),
        (f"-s {PORT} ECAP_ACS+6=0", "Missing width"),
        (f"-s {PORT} ECAP_ACS+6.w=10000", 'Value "10000" is out of range'),
        (f"-s {PORT} ECAP_ACS+5.w=0", "Unaligned register address 05"),
        (f"-s {PORT} ECAP_ACS+6.w=", "Missing value"),
        ("-s nowhere COMMAND", "Unable to parse filter -s nowhere"),
        ("COMMAND", "Filter specification expected"),
        (f"-s {PORT} ECAP_PASID+6.w", "Instance #0 of Extended capability 001b not found"),
    ],
)
def test_setpci_reports_errors(arguments: str, words: str) -> None:
    status, text = run(node("hgx-h100"), f"setpci {arguments}")
    assert status == 1
    assert text.startswith("setpci: ")
    assert words in text


def test_setpci_succeeds_if_nothing_was_written() -> None:
    # As the real one: only what is read back tells.
    assert run(node("hgx-h100"), "setpci -s 0000:77:00.0 COMMAND=0") == (
        0,
        "setpci: Warning: No devices selected for operation group 1.",
    )
    host = node("hgx-h100+acs-on,kernel-forbids-modules-lockdown")
    status, text = run(host, f"setpci -s {PORT} ECAP_ACS+6.w=0000:000c")
    assert (status, text) == (0, "pcilib: sysfs_write: write failed: Operation not permitted")
    assert acs_control(host) == 0x1D


# services


def test_a_service_is_stopped_started_enabled_and_disabled() -> None:
    host = node("hgx-h100")
    assert run(host, "systemctl disable --now nvidia-fabricmanager")[0] == 0
    assert state_of(host, "nvidia-fabricmanager") is ServiceState.INACTIVE
    assert run(host, "systemctl is-enabled nvidia-fabricmanager") == (1, "disabled")
    assert run(host, "systemctl is-active nvidia-fabricmanager.service") == (3, "inactive")
    status, text = run(host, "systemctl enable --now nvidia-fabricmanager.service")
    assert (status, text.split()[:2]) == (0, ["Created", "symlink"])
    assert state_of(host, "nvidia-fabricmanager") is ServiceState.ACTIVE
    assert run(host, "systemctl is-enabled nvidia-fabricmanager") == (0, "enabled")


def test_a_missing_unit() -> None:
    host = node("hgx-h100")
    assert run(host, "systemctl start nosuch") == (
        5,
        "Failed to start nosuch.service: Unit nosuch.service not found.",
    )
    assert run(host, "systemctl stop nosuch") == (
        5,
        "Failed to stop nosuch.service: Unit nosuch.service not loaded.",
    )
    assert run(host, "systemctl enable nosuch") == (
        1,
        "Failed to enable unit: Unit file nosuch.service does not exist.",
    )


def test_a_unit_written_and_reloaded_can_be_started() -> None:
    host = node("hgx-h100")
    assert run(host, "tee /etc/systemd/system/gdr.service", "[Service]\nType=oneshot\n")[0] == 0
    assert run(host, "systemctl daemon-reload") == (0, "")
    assert run(host, "systemctl enable --now gdr.service")[0] == 0
    assert run(host, "systemctl is-active gdr") == (0, "active")


def test_persistence_follows_its_daemon() -> None:
    host = node("hgx-h100")
    run(host, "systemctl stop nvidia-persistenced")
    assert persistence(host) == {False}
    run(host, "systemctl start nvidia-persistenced")
    assert persistence(host) == {True}


def test_a_daemon_with_no_persistence_mode_leaves_it_off() -> None:
    host = node("hgx-h100+persistence-off-daemon-runs")
    assert run(host, "systemctl restart nvidia-persistenced")[0] == 0
    assert persistence(host) == {False}


def test_fabric_manager_needs_the_drivers_version() -> None:
    host = node("hgx-h100+fabric-manager-down-version")
    status, text = run(host, "systemctl restart nvidia-fabricmanager")
    assert status == 1
    assert text.startswith("Job for nvidia-fabricmanager.service failed")
    assert state_of(host, "nvidia-fabricmanager") is ServiceState.FAILED
    assert "570.86.15" in run(host, "journalctl -u nvidia-fabricmanager")[1]


def test_openibd_cannot_restart_while_its_modules_are_in_use() -> None:
    host = node("hgx-h100")
    assert run(host, "systemctl restart openibd")[0] == 1
    end_job(host)
    assert run(host, "systemctl restart openibd")[0] == 1
    assert "in use by: nvidia_peermem" in run(host, "journalctl -u openibd")[1]


def test_openibd_loads_ofed_again() -> None:
    host = node("hgx-h100")
    end_job(host)
    run(host, "modprobe -r nvidia_peermem")
    assert run(host, "systemctl restart openibd") == (0, "")
    assert not {"mlx5-ib-not-loaded", "ib-core-not-loaded", "mlx5-core-not-loaded"} & set(found_on(host))


@pytest.mark.slow
def test_systemd_modules_load_loads_the_configured_modules() -> None:
    host = node("hgx-h100+boot-load-race")
    assert state_of(host, "systemd-modules-load") is ServiceState.FAILED
    assert "nvidia_peermem" in run(host, "journalctl -b -u systemd-modules-load")[1]
    assert run(host, "systemctl restart systemd-modules-load") == (0, "")
    assert state_of(host, "systemd-modules-load") is ServiceState.ACTIVE
    assert "peermem-not-loaded" not in found_on(host)


# GPUs


def test_nvidia_smi_sets_persistence() -> None:
    host = node("hgx-h100")
    status, text = run(host, "nvidia-smi -i 0 -pm 0")
    assert status == 0
    assert text.splitlines()[0].startswith("Disabled persistence mode for GPU 00000000:")
    assert persistence(host) == {True, False}
    assert "already" in run(host, "nvidia-smi --id=0 --persistence-mode=0")[1]


def test_nvidia_smi_without_a_driver() -> None:
    status, text = run(node("pcie-l40s+nvidia-not-loaded"), "nvidia-smi -pm 1")
    assert status == 9
    assert text.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_mig_waits_for_the_job() -> None:
    host = node("hgx-h100+mig-with-gdr")
    status, text = run(host, "nvidia-smi -i 0 -mig 0")
    assert status == 0
    assert "pending disable state" in text
    end_job(host)
    assert "Disabled MIG Mode" in run(host, "nvidia-smi -i 0,1,2,3,4,5,6,7 -mig 0")[1]
    assert "mig-with-gdr" not in found_on(host)


def test_nvidia_modprobe_creates_the_requested_files() -> None:
    host = node("hgx-h100+dev-nvidia-missing")
    assert run(host, "nvidia-modprobe --unified-memory") == (0, "")
    assert "dev-nvidia-missing" in found_on(host)
    assert run(host, "nvidia-modprobe -c 0 -c 1") == (0, "")
    assert "dev-nvidia-missing" not in found_on(host)


# ports


def test_a_roce_port_follows_its_netdev() -> None:
    host = node("hgx-h100")
    assert run(host, "ip link set dev ens4np0 down") == (0, "")
    assert "ib-port-not-active-netdev-down" in found_on(host)
    assert run(host, "ip link set ens4np0 up mtu 4200") == (0, "")
    assert "ib-port-not-active-netdev-down" not in found_on(host)
    assert host.read("/sys/class/net/ens4np0/mtu") == "4200"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("nosuch up", (1, 'Cannot find device "nosuch"')),
        ("ens4np0 mtu 70000", (2, "Error: mtu greater than device maximum.")),
        ("ens4np0 mtu big", (255, 'Error: argument "big" is wrong: Invalid "mtu" value')),
    ],
)
def test_ip_link_reports_errors(arguments: str, answer: tuple[int, str]) -> None:
    assert run(node("hgx-h100"), f"ip link set dev {arguments}") == answer


def test_a_port_without_a_cable_does_not_come_up() -> None:
    host = node("hgx-h100+port-down")
    assert run(host, "ibportstate -C mlx5_1 -P 1 -D 0 1 enable")[0] == 0
    assert "ib-port-not-active" in found_on(host)


def test_infiniband_programs_reject_roce_ports() -> None:
    for command in (
        "ibportstate -C mlx5_4 -P 1 -D 0 1 enable",
        "perfquery -C mlx5_4 -P 1 -R",
        "sminfo -C mlx5_4",
    ):
        status, text = run(node("hgx-h100"), command)
        assert status == 255
        assert "mad_rpc_open_port: client_register for mgmt 1 failed" in text


def test_a_reset_counter_keeps_counting() -> None:
    now = 1000.0
    host = SimulatedHost("hgx-h100+symbol-errors-rising", clock=lambda: now)
    path = "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    assert int(str(host.read(path))) > 100
    assert run(host, "perfquery -C mlx5_0 -P 1 -R")[0] == 0
    assert host.read(path) == "0"
    now += 60
    assert host.read(path) == "30"


# files


def test_a_file_is_written_copied_moved_and_removed() -> None:
    host = node("hgx-h100")
    assert run(host, "mkdir -p /etc/modprobe.d /var/backups/gdrtop") == (0, "")
    assert run(host, "tee /etc/modprobe.d/a.conf", "options nvidia x=1\n") == (0, "options nvidia x=1")
    assert run(host, "cp -p /etc/modprobe.d/a.conf /var/backups/gdrtop/a.conf") == (0, "")
    assert run(host, "mv -T /var/backups/gdrtop/a.conf /etc/modprobe.d/b.conf") == (0, "")
    assert host.names("/etc/modprobe.d") == ("a.conf", "b.conf")
    assert run(host, "rm /etc/modprobe.d/a.conf") == (0, "")
    assert host.read("/etc/modprobe.d/b.conf") == "options nvidia x=1"
    assert run(host, "sync /etc/modprobe.d/b.conf") == (0, "")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("rm /nosuch", "rm: cannot remove '/nosuch': No such file or directory"),
        ("rm /etc", "rm: cannot remove '/etc': Is a directory"),
        ("tee /nosuch/file", "tee: /nosuch/file: No such file or directory"),
        ("tee /etc", "tee: /etc: Is a directory"),
        ("cp /nosuch /etc/x", "cp: cannot stat '/nosuch': No such file or directory"),
        ("mkdir /etc", "mkdir: cannot create directory '/etc': File exists"),
        ("ln -s x /etc", None),
        ("ln -s x /etc/os-release", "ln: failed to create symbolic link '/etc/os-release': File exists"),
        ("chmod 0666 /nosuch", "chmod: cannot access '/nosuch': No such file or directory"),
        ("tee /sys/nosuch", "tee: /sys/nosuch: Permission denied"),
        ("rm /proc/modules", "rm: cannot remove '/proc/modules': Operation not permitted"),
    ],
)
def test_file_commands_report_errors(command: str, text: str | None) -> None:
    assert run(node("hgx-h100"), command) == ((1, text) if text is not None else (0, ""))


def test_rm_f_succeeds_without_a_file() -> None:
    assert run(node("hgx-h100"), "rm -f /nosuch") == (0, "")


def test_install_writes_its_standard_input() -> None:
    host = node("hgx-h100")
    assert run(host, "install -D -m 0644 /dev/stdin /etc/new/place/x.conf", "a\n") == (0, "")
    assert host.read("/etc/new/place/x.conf") == "a"
    assert run(host, "install -d -m 0755 /etc/another") == (0, "")
    assert host.names("/etc/another") == ()


def test_chmod_opens_and_closes_a_device_file_to_others() -> None:
    host = node("hgx-h100")
    path = "/dev/infiniband/uverbs1"
    assert run(host, f"chmod 0600 {path}") == (0, "")
    assert host.access(path, write=True) is False
    assert run(host, f"chmod 0666 {path}") == (0, "")
    assert host.access(path, write=True) is True


def test_scontrol_drains_this_node_and_no_other() -> None:
    host = node("hgx-h100")
    asked = ("sinfo", "--noheader", "--nodes", "hgx-h100", "--format", "%T|%E")

    def state() -> str:
        answer = host.run(asked)
        return "" if isinstance(answer, Unknown) else answer.stdout

    assert state() == "mixed|none\n"
    assert run(host, "scontrol update NodeName=other State=DRAIN Reason=x")[0] == 1
    assert run(host, "scontrol update NodeName=hgx-h100 State=DRAIN")[0] == 127
    assert run(host, "scontrol update NodeName=hgx-h100 State=DRAIN Reason=test") == (0, "")
    assert state() == "drained|test\n"  # its jobs have ended
    assert run(host, "scontrol update NodeName=hgx-h100 State=UNDRAIN") == (0, "")
    assert state() == "mixed|none\n"


# anything at all

# fmt: off
ARGUMENTS = [
    "-r", "-a", "-f", "-s", "-C", "-w", "--now", "--", "-mig", "-pm", "-i", "-u", "-c", "-D", "-R",
    "nvidia", "nvidia-peermem", "mlx5_0", "start", "restart", "enable", "nvidia-persistenced",
    "openibd", "link", "set", "dev", "ib0", "up", "mtu", "1", "ECAP_ACS+6.w=0:c", "COMMAND",
    "0001:00:00.0", "trigger", "/etc", "/dev/..", "/sys/class/net", "/lib/modules", "/", "..",
]
# fmt: on
WORDS = st.one_of(st.sampled_from(sorted(HANDLERS)), st.sampled_from(ARGUMENTS), st.text(max_size=12))


@pytest.mark.slow
@given(
    st.sampled_from(sorted(HANDLERS)),
    st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=4),
    st.text(),
)
@settings(max_examples=150)
def test_no_command_raises_an_error(command: str, arguments: list[list[str]], stdin: str) -> None:
    host = node("cloud-vm")
    for words in arguments:
        result = host.perform((command, *words), stdin)
        assert 0 <= result.exit_status <= 255
        assert result.seconds > 0
        assert all("\n" not in line for line in result.lines)
    found_on(host)


def test_mknod_needs_a_number_and_a_free_name() -> None:
    host = node("hgx-h100+dev-infiniband-incomplete")
    assert run(host, "mknod -m 0666 /dev/infiniband/uverbs9 c 231 201") == (0, "")
    assert "dev-infiniband-incomplete" not in found_on(host)
    again = "mknod: /dev/infiniband/uverbs9: File exists"
    assert run(host, "mknod /dev/infiniband/uverbs9 c 231 201") == (1, again)
    assert run(host, "mknod /dev/nowhere/x c 1 2")[0] == 1
    assert run(host, "mknod /dev/x c one 2")[0] == 1
    assert run(host, "mknod -m 0600 /dev/infiniband/uverbs10 c 231 202") == (0, "")
    assert "dev-infiniband-denied" in found_on(host)
