"""modprobe and rmmod on simulated nodes: order, refusals, messages of kmod and the kernel."""

import pytest

from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.nvml import NvmlFacts
from probes.simulation.host import SimulatedHost
from probes.simulation.node.system.software import set_library_version
from tests.support.simulated_commands import end_job, node, run

PEERMEM = "nvidia_peermem"
COULD_NOT = f"modprobe: ERROR: could not insert '{PEERMEM}': "


def states(host: SimulatedHost) -> dict[str, object]:
    facts = probe_node(host).modules
    assert isinstance(facts, ModuleFacts)
    return {name: module.state for name, module in facts.modules.items()}


def said_since(host: SimulatedHost, before: int) -> list[str]:
    """Return the new lines of the kernel log without their time."""
    return [line.partition("] ")[2].rstrip() for line in host.tree.kernel_log[before:]]


def loaded_in_order(host: SimulatedHost) -> list[str]:
    return [line.split()[0] for line in str(host.read("/proc/modules")).splitlines()][::-1]


def test_dependencies_are_loaded_first() -> None:
    host = node("hgx-h100+ib-core-not-loaded")
    assert run(host, "modprobe mlx5_ib") == (0, "")
    order = loaded_in_order(host)
    assert order.index("ib_core") < order.index("ib_uverbs") < order.index("mlx5_ib")


def test_both_spellings_and_all_trusted_paths_work() -> None:
    for command in ("modprobe nvidia-peermem", "/usr/sbin/modprobe nvidia_peermem"):
        host = node("hgx-h100+peermem-not-loaded")
        assert run(host, command) == (0, "")
        assert states(host)[PEERMEM] is ModuleState.LIVE


def test_loading_a_loaded_module_succeeds() -> None:
    assert run(node("hgx-h100"), "modprobe nvidia") == (0, "")


def test_a_blacklist_does_not_stop_a_named_module() -> None:
    host = node("hgx-h100+peermem-not-loaded,module-blacklisted")
    assert run(host, "modprobe -b nvidia-peermem") == (0, "")
    assert states(host)[PEERMEM] is ModuleState.NOT_LOADED
    assert run(host, "modprobe nvidia-peermem") == (0, "")
    assert states(host)[PEERMEM] is ModuleState.LIVE


def test_a_module_just_loaded_can_be_removed() -> None:
    host = node("hgx-h100+peermem-not-loaded")
    assert run(host, "modprobe nvidia-peermem") == (0, "")
    assert host.read("/sys/module/nvidia_peermem/refcnt") == "0"
    assert run(host, "modprobe -r nvidia-peermem") == (0, "")
    assert states(host)[PEERMEM] is ModuleState.NOT_LOADED


def test_success_is_silent_in_the_kernel_log() -> None:
    host = node("hgx-h100+peermem-not-loaded")
    before = len(host.tree.kernel_log)
    run(host, "modprobe nvidia-peermem")
    assert said_since(host, before) == []


def test_parameters_from_the_command_and_from_modprobe_d() -> None:
    host = node("hgx-h100+peermem-not-loaded")
    run(host, "tee /etc/modprobe.d/x.conf", "options nvidia-peermem peerdirect_support=1\n")
    before = len(host.tree.kernel_log)
    assert run(host, "modprobe nvidia-peermem persistent_api_support=0 no_such=1")[0] == 0
    parameters = "/sys/module/nvidia_peermem/parameters"
    assert host.read(f"{parameters}/peerdirect_support") == "1"
    assert host.read(f"{parameters}/persistent_api_support") == "0"
    assert said_since(host, before) == [f"{PEERMEM}: unknown parameter 'no_such' ignored"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "error", "lines"),
    [
        ("peermem-built-without-symbols", "Invalid argument", 0),
        ("peermem-symbol-version-mismatch", "Invalid argument", 2),
        ("peermem-symbol-version-mismatch-nvidia", "Invalid argument", 2),
        ("peermem-parameter-invalid", "Invalid argument", 1),
        (
            "peermem-unknown-symbol-inbox-core",
            "Unknown symbol in module, or unknown parameter (see dmesg)",
            1,
        ),
        ("module-wrong-vermagic", "Exec format error", 1),
        ("secure-boot-unsigned", "Key was rejected by service", 1),
        ("secure-boot-key-rejected", "Key was rejected by service", 1),
        ("kernel-forbids-modules-lockdown", "Operation not permitted", 1),
        ("module-blacklisted-cmdline", "Operation not permitted", 1),
    ],
)
def test_the_kernel_refuses_a_module_with_a_fault(fault: str, error: str, lines: int) -> None:
    host = node(f"hgx-h100+{fault}")
    before = len(host.tree.kernel_log)
    assert run(host, "modprobe nvidia-peermem") == (1, f"{COULD_NOT}{error}")
    assert len(said_since(host, before)) == lines
    assert states(host)[PEERMEM] is ModuleState.NOT_LOADED


def test_no_module_is_loaded_or_removed_when_disabled() -> None:
    host = node("hgx-h100+peermem-not-loaded,kernel-forbids-modules-disabled")
    assert run(host, "modprobe nvidia-peermem") == (1, f"{COULD_NOT}Operation not permitted")
    assert run(host, "modprobe -r gdrdrv")[1] == (
        "modprobe: ERROR: could not remove 'gdrdrv': Operation not permitted"
    )
    assert run(host, "sysctl -w kernel.modules_disabled=0")[0] == 1


def test_nv_peer_mem_blocks_nvidia_peermem() -> None:
    host = node("dgx-a100+nv-peer-mem-conflict")
    before = len(host.tree.kernel_log)
    assert run(host, "modprobe nvidia-peermem") == (1, f"{COULD_NOT}Invalid argument")
    (line,) = said_since(host, before)
    assert line.startswith("nvidia-peermem nv_mem_client_init:")
    assert "ERROR" in line
    assert "error while registering" in line


def test_an_install_line_replaces_the_module() -> None:
    status, text = run(node("hgx-h100+module-blacklisted-install"), "modprobe nvidia-peermem")
    assert status == 1
    assert "Error running install command '/bin/false' for module nvidia_peermem: retcode 1" in text
    assert run(node("hgx-h100+module-blacklisted-install"), "modprobe -i nvidia-peermem") == (0, "")


def test_a_missing_module_file() -> None:
    absent = "nvidia-peermem not found in directory /lib/modules/6.8.0-60-generic"
    host = node("hgx-h100+peermem-not-on-disk")
    assert run(host, "modprobe nvidia-peermem") == (1, f"modprobe: FATAL: Module {absent}")
    assert run(host, "modprobe -a gdrdrv nvidia-peermem") == (1, f"modprobe: WARNING: Module {absent}")
    assert run(host, "modprobe -r nosuch") == (1, "modprobe: FATAL: Module nosuch not found.")


def test_modules_in_use_stay() -> None:
    host = node("hgx-h100")
    for name in ("nvidia_peermem", "nvidia_uvm", "nvidia", "mlx5_ib", "ib_core"):
        assert run(host, f"modprobe -r {name}") == (1, f"modprobe: FATAL: Module {name} is in use.")
    assert run(host, "rmmod nvidia_peermem") == (1, "rmmod: ERROR: Module nvidia_peermem is in use")
    status, text = run(host, "rmmod nvidia")
    assert status == 1
    assert text.startswith("rmmod: ERROR: Module nvidia is in use by: ")
    assert set(text.partition("by: ")[2].split()) == {"nvidia_uvm", "nvidia_peermem", "gdrdrv"}
    assert run(host, "rmmod nosuch") == (1, "rmmod: ERROR: Module nosuch is not currently loaded")


def test_built_in_modules_stay() -> None:
    assert run(node("hgx-h100"), "modprobe -r ext4") == (1, "modprobe: FATAL: Module ext4 is builtin.")


def test_unused_dependencies_are_removed_too() -> None:
    host = node("pcie-l40s")
    end_job(host)
    run(host, "systemctl stop nvidia-persistenced")
    assert run(host, "modprobe -r nvidia_uvm") == (0, "")
    assert not {"nvidia", "nvidia_uvm"} & set(loaded_in_order(host))


def test_nvml_and_device_files_follow_the_driver() -> None:
    host = node("pcie-l40s")
    end_job(host)
    run(host, "systemctl stop nvidia-persistenced")
    run(host, "modprobe -r nvidia_uvm nvidia")
    assert not isinstance(host.nvml(), NvmlFacts)
    assert "nvidia" not in (host.names("/proc/driver") or ())
    assert run(host, "modprobe nvidia_uvm") == (0, "")
    facts = host.nvml()
    assert isinstance(facts, NvmlFacts)
    assert len(facts.gpus) == 4


def test_devices_are_restored() -> None:
    host = node("hgx-h100+port-down")
    end_job(host)
    run(host, "modprobe -r nvidia_peermem")
    before = probe_node(host).rdma
    assert run(host, "modprobe -r rdma_ucm rdma_cm mlx5_ib") == (0, "")
    gone = probe_node(host).rdma
    assert not isinstance(gone, RdmaFacts) or not gone.devices
    assert run(host, "modprobe mlx5_core")[0] == 0  # udev loads mlx5_ib for the device that it makes
    assert probe_node(host).rdma == before


def test_a_driver_replaced_on_disk_is_loaded() -> None:
    host = node("hgx-h100+driver-half-updated")
    set_library_version(host.tree, "595.71.05")
    end_job(host)
    for service in ("nvidia-persistenced", "nvidia-fabricmanager"):
        assert run(host, f"systemctl stop {service}") == (0, "")
    assert run(host, "modprobe -r gdrdrv nvidia_peermem nvidia_uvm nvidia") == (0, "")
    assert run(host, "modprobe nvidia") == (0, "")
    facts = host.nvml()
    assert isinstance(facts, NvmlFacts)
    assert facts.driver_version == "595.71.05"


@pytest.mark.parametrize("command", ["modprobe", "modprobe --no-such-option x", "modprobe -r", "rmmod"])
def test_wrong_arguments_change_nothing(command: str) -> None:
    host = node("pcie-l40s")
    before = loaded_in_order(host)
    status, text = run(host, command)
    assert status == 1
    assert text.startswith(command.split()[0])
    assert loaded_in_order(host) == before
