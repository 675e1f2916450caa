"""The steps of setup on simulated nodes: their states, order and reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.gpudirect import GdrPath
from probes.setup.situation import read_situation
from probes.setup.step import SetupRecord, StepState
from probes.setup.steps.guide import Guide, build_guide, remaining_plans
from probes.simulation.faults.modules import take_driver_from_disk
from probes.simulation.host import SimulatedHost
from probes.simulation.node.modules.loading import remove_modules
from probes.snapshot.examination import examine
from widgets.setup import finished_words

FIRST_BOOT, SECOND_BOOT = "boot-1", "boot-2"


def guide_of(name: str, record: SetupRecord | None = None, boot_id: str = FIRST_BOOT) -> Guide:
    host = SimulatedHost(name)
    examination = examine(host)
    situation = read_situation(host, examination)
    return build_guide(situation, findings(examination), (), record or SetupRecord(), boot_id)


def state_of(guide: Guide, name: str) -> tuple[StepState, str]:
    step = guide.step(name)
    assert step is not None
    return step.state, step.reason


@pytest.mark.parametrize("module", ["mlx5-core", "mlx5-ib"])
def test_a_missing_nic_driver_is_left_to_load(module: str) -> None:
    state, reason = state_of(guide_of(f"pcie-l40s+{module}-not-loaded"), "modules")
    assert state is StepState.TO_DO
    assert reason.startswith(module.replace("-", "_"))


def test_a_healthy_node_only_has_to_be_measured_rebooted_and_reported() -> None:
    guide = guide_of("hgx-h100")
    assert guide.path is GdrPath.DMABUF
    left = [step.id for step in guide.steps if step.is_open]
    assert left == ["measure-host", "measure-pair", "measure-staged", "measure-all", "reboot", "report"]
    assert guide.next_step is not None
    assert guide.next_step.id == "measure-host"
    assert not guide.is_finished


@pytest.mark.parametrize(
    ("node", "version", "first"),
    [
        ("hgx-b200", "565.57.01", 570),
        ("hgx-b200", "570.86.15", 0),
        ("hgx-b300", "575.64.05", 580),
        ("hgx-b300", "580.82.07", 0),
        ("vera-rubin", "595.45.04", 610),
        ("hgx-h100", "550.54.14", 0),
    ],
)
def test_a_driver_without_the_gpu_is_to_be_replaced(node: str, version: str, first: int) -> None:
    """g_nv_name_released.h of the open modules by tag: which GPUs a driver lists."""
    host = SimulatedHost(node)
    examination = examine(host)
    situation = read_situation(host, examination)
    assert not isinstance(situation.gpu_driver, Unknown)
    older = replace(situation, gpu_driver=replace(situation.gpu_driver, version=version))
    guide = build_guide(older, findings(examination), (), SetupRecord(), FIRST_BOOT)
    state, reason = state_of(guide, "gpu-driver")
    assert (state is StepState.TO_DO) == bool(first)
    assert (f"needs driver {first} or newer; this is {version}" in reason) == bool(first)


def test_a_node_whose_faults_are_skipped_is_not_simply_set_up() -> None:
    fresh = guide_of("hgx-h100")
    left = [step.id for step in fresh.steps if step.is_open]
    guide = guide_of("hgx-h100", record=SetupRecord(skipped=dict.fromkeys(left, "skipped by root")))
    assert guide.is_finished
    assert guide.skipped == tuple(left)
    assert finished_words(guide) == f"the node is set up, apart from {len(left)} skipped steps"


def test_a_proprietary_driver_is_replaced_before_modules_are_loaded() -> None:
    guide = guide_of("hgx-h100+nvidia-not-loaded,dmabuf-needs-open-module")
    assert state_of(guide, "gpu-driver")[0] in (StepState.TO_DO, StepState.DONE, StepState.UNKNOWN)
    modules = guide.step("modules")
    assert modules is not None
    assert modules.state in (StepState.TO_DO, StepState.BLOCKED)
    assert "nvidia-not-loaded" in modules.findings


@pytest.mark.slow
def test_acs_waits_for_the_iommu() -> None:
    guide = guide_of("hgx-h100+iommu-translated,acs-on")
    assert state_of(guide, "iommu")[0] is StepState.TO_DO
    assert state_of(guide, "acs") == (StepState.BLOCKED, "waiting for: Set the IOMMU to passthrough")
    assert state_of(guide_of("hgx-h100+acs-on"), "acs")[0] is StepState.TO_DO


@pytest.mark.slow
def test_peermem_matters_only_on_its_path() -> None:
    name = "hgx-h100+peermem-not-loaded"
    assert state_of(guide_of(name), "modules")[0] is StepState.DONE
    chosen = guide_of(name, SetupRecord(path=GdrPath.PEERMEM.value))
    assert chosen.path is GdrPath.PEERMEM
    assert state_of(chosen, "dmabuf") == (StepState.SKIPPED, "not needed for nvidia-peermem")
    modules = chosen.step("modules")
    assert modules is not None
    assert modules.reason == "nvidia_peermem is not loaded"
    assert modules.plan is not None
    assert ("modprobe", "nvidia_peermem") in [step.argv for step in modules.plan.steps]
    assert state_of(chosen, "boot")[0] is StepState.BLOCKED


def test_a_skipped_step_says_who_skipped_it_and_blocks_nothing() -> None:
    record = SetupRecord(skipped={"iommu": "skipped by root on 2026-11-22"})
    guide = guide_of("hgx-h100+iommu-translated,acs-on", record)
    assert state_of(guide, "iommu") == (StepState.SKIPPED, "skipped by root on 2026-11-22")
    assert state_of(guide, "acs")[0] is StepState.TO_DO


@pytest.mark.slow
def test_a_reboot_counts_only_in_a_boot_in_which_nothing_was_open() -> None:
    assert state_of(guide_of("hgx-h100"), "reboot")[0] is StepState.TO_DO
    same = guide_of("hgx-h100", SetupRecord(boots={FIRST_BOOT: False}))
    assert state_of(same, "reboot") == (StepState.TO_DO, "not rebooted since setup began")
    later = guide_of("hgx-h100", SetupRecord(boots={FIRST_BOOT: True}), SECOND_BOOT)
    assert state_of(later, "reboot") == (StepState.DONE, "the path is usable after a reboot")
    mended = SetupRecord(boots={FIRST_BOOT: False, SECOND_BOOT: True})
    state, reason = state_of(guide_of("hgx-h100", mended, SECOND_BOOT), "reboot")
    assert (state, reason) == (StepState.TO_DO, "not rebooted since the last step was completed")
    broken = guide_of("hgx-h100+no-gdr-path", SetupRecord(boots={FIRST_BOOT: False}), SECOND_BOOT)
    assert state_of(broken, "reboot")[0] is StepState.BLOCKED


def test_an_unknown_boot_is_not_a_reboot() -> None:
    host = SimulatedHost("hgx-h100")
    examination = examine(host)
    situation = read_situation(host, examination)
    unread = Unknown(Reason.NOT_THERE, "/proc/sys/kernel/random/boot_id")
    record = SetupRecord(boots={FIRST_BOOT: False})
    guide = build_guide(situation, findings(examination), (), record, unread)
    assert state_of(guide, "reboot")[0] is StepState.UNKNOWN


@pytest.mark.parametrize("name", ["hgx-h100+iommu-translated,acs-on,memlock-login", "hgx-h100+no-gdr-path"])
def test_the_script_has_the_commands_of_every_open_step_once(name: str) -> None:
    guide = guide_of(name)
    plans = remaining_plans(guide)
    argvs = [step.argv for plan in plans for step in plan.steps if step.argv]
    assert argvs.count(("systemctl", "reboot")) <= 1
    for step in guide.steps:
        is_open = step.state in (StepState.TO_DO, StepState.BLOCKED) and step.id != "reboot"
        if is_open and step.plan is not None:
            assert all(command.argv in argvs for command in step.plan.steps if command.argv)
    assert all(step.plan is None or step.state is not StepState.DONE for step in guide.steps)


def test_the_script_has_a_plan_whose_other_step_is_skipped() -> None:
    name = "oci-h100+nccl-gid-index-not-v2"  # the plan of the steps "ports" and "nccl"
    (plan,) = remaining_plans(guide_of(name))
    for skipped in ("ports", "nccl"):
        assert remaining_plans(guide_of(name, record=SetupRecord(skipped={skipped: "by root"}))) == (plan,)


def test_a_finished_node_leaves_no_command() -> None:
    assert remaining_plans(guide_of("hgx-h100")) == ()


# What is missing, and the commands of this node


def guide_on(host: SimulatedHost, record: SetupRecord | None = None) -> Guide:
    examination = examine(host)
    situation = read_situation(host, examination)
    return build_guide(situation, findings(examination), (), record or SetupRecord(), FIRST_BOOT)


def commands_of(guide: Guide, name: str) -> list[str]:
    step = guide.step(name)
    assert step is not None
    assert step.plan is not None, step.reason
    return [
        " ".join(command.argv) or (command.file.path if command.file else command.why)
        for command in step.plan.steps
    ]


def without_driver(name: str) -> SimulatedHost:
    host = SimulatedHost(name)
    remove_modules(host.tree, "nvidia_peermem", "nvidia_uvm", "nvidia")
    take_driver_from_disk(host.tree)
    for path in [path for path in host.tree.files if path.startswith("/proc/driver/nvidia")]:
        host.tree.remove(path)
    return host


def test_a_node_without_a_driver_gets_the_commands_of_its_distribution() -> None:
    guide = guide_on(without_driver("pcie-l40s"))
    assert state_of(guide, "gpu-driver") == (
        StepState.TO_DO,
        "the installed driver has no module for this kernel",
    )
    assert "dnf -y install nvidia-open" in commands_of(guide, "gpu-driver")
    assert state_of(guide, "modules")[0] is StepState.BLOCKED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("hgx-h100", "apt-get -y install nvidia-open"),
        ("pcie-l40s", "dnf -y install nvidia-open"),
        ("aws-p5", "apt-get -y install nvidia-open"),
        ("azure-nd-h100", "apt-get -y install nvidia-open"),
    ],
)
def test_a_new_node_begins_with_the_open_driver(name: str, package: str) -> None:
    """Also with OFED, where nvidia_peermem could work: no driver is there that would speak for it."""
    guide = guide_of(f"{name}+new-node")
    assert guide.path is GdrPath.DMABUF
    assert guide.next_step is not None
    assert guide.next_step.id == "gpu-driver"
    assert commands_of(guide, "gpu-driver")[-1] == package
    assert state_of(guide, "tools")[0] is StepState.TO_DO
    assert not guide.is_finished


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("debian", "apt-get -y install nvidia-open"),
        ("sles", "zypper install nvidia-open-driver-G06-signed-cuda-kmp-default nvidia-drivers-minimal-G06"),
        ("azure-linux", "tdnf -y install cuda-open"),
        ("talos", "Load the modules by the machine configuration: gdrtop manifest talos"),
        ("openshift", "Let the GPU Operator install the open kernel modules: gdrtop manifest clusterpolicy"),
    ],
)
def test_a_new_node_of_any_distribution_has_its_own_commands(name: str, command: str) -> None:
    guide = guide_of(f"pcie-l40s+new-node-{name}")
    assert state_of(guide, "gpu-driver") == (StepState.TO_DO, "no NVIDIA driver is installed")
    assert commands_of(guide, "gpu-driver")[-1] == command


def test_azure_linux_has_a_perftest_of_its_own() -> None:
    guide = guide_of("azure-nd-h100+new-node-azure-linux")
    install = "tdnf -y install perftest rdma-core libibverbs-utils infiniband-diags"
    assert install in commands_of(guide, "tools")


def test_a_node_without_a_network_is_told_before_a_download_times_out() -> None:
    host = without_driver("pcie-l40s")
    names = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    host.tree.add("/proc/net/route", f"{names}\n")
    host.tree.add("/proc/net/ipv6_route", "")
    assert commands_of(guide_on(host), "gpu-driver")[0].startswith("This node has no default route")
    assert "no default route" not in commands_of(guide_on(without_driver("pcie-l40s")), "gpu-driver")[0]


def test_with_secure_boot_an_installation_says_that_it_needs_the_console() -> None:
    host = without_driver("pcie-l40s")
    path = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    host.tree.add(path, b"\x06\x00\x00\x00\x01")
    step = guide_on(host).step("gpu-driver")
    assert step is not None
    assert step.needs_console
    assert step.plan is not None
    assert "Secure Boot is on" in step.plan.note


@pytest.mark.slow
def test_peermem_is_loaded_again_after_openibd() -> None:
    host = SimulatedHost("dgx-a100")
    guide = guide_on(host)
    step = guide.step("boot")
    assert step is not None
    assert step.reason == "a restart of openibd unloads nvidia_peermem, and nothing loads it again"
    assert step.plan is not None
    change = step.plan.steps[0].file
    assert change is not None
    host.tree.add(change.path, change.text or "")
    assert state_of(guide_on(host), "boot")[0] is StepState.DONE
    assert state_of(guide_on(SimulatedHost("hgx-h100")), "boot")[0] is StepState.DONE


def test_a_node_whose_driver_the_operator_owns_gets_no_entry_in_modules_load() -> None:
    guide = guide_on(SimulatedHost("hgx-h100+k8s-operators"), SetupRecord(path=GdrPath.PEERMEM.value))
    boot = guide.step("boot")
    assert boot is not None
    assert boot.plan is None


def test_a_note_is_not_hidden_behind_a_step_that_is_done() -> None:
    guide = guide_of("hgx-h100+secure-boot-key-rejected")
    state, reason = state_of(guide, "signatures")
    assert state is StepState.DONE
    assert reason.startswith("nothing to do; note: The kernel rejected a module signature")


def test_a_node_that_cannot_do_it_by_design_sets_up_its_path_through_host_memory() -> None:
    guide = guide_of("pcie-l40s+geforce-no-gdr")
    reason = "by design: GeForce GPUs do not support GPUDirect RDMA"
    assert state_of(guide, "hardware") == (StepState.DONE, reason)
    assert state_of(guide, "acs")[0] is StepState.SKIPPED
    assert not {"acs", "dmabuf", "measure-pair"} & {step.id for step in guide.listed}
    assert guide.next_step is not None
    assert guide.next_step.id == "measure-host"


@pytest.mark.parametrize(
    ("node", "state", "reason", "is_optional"),
    [
        ("bare-roce", StepState.DONE, "16 switch ports known", False),
        ("bare-roce+frame-size-small", StepState.TO_DO, "forwards smaller frames", False),
        ("bare-roce+cable-swapped", StepState.TO_DO, "A switch port is described as that of another", False),
        ("hgx-h100+ber-rising", StepState.TO_DO, "A port receives many bit errors", False),
        (
            "bare-roce+lldp-not-readable",
            StepState.UNKNOWN,
            "the other end of 16 of 16 cables is unknown",
            True,
        ),
        ("hgx-h100", StepState.DONE, "lldpd is not installed, so their ends are unknown", False),
        ("cloud-vm", StepState.DONE, "no cable has a fault that this node can see", False),
        ("pcie-l40s+port-down", StepState.BLOCKED, "waiting for: Bring up the ports", False),
    ],
)
def test_cables_are_judged_once_the_ports_are_up(
    node: str, state: StepState, reason: str, is_optional: bool
) -> None:
    step = guide_of(node).step("cables")
    assert step is not None
    assert (step.state, step.is_optional) == (state, is_optional)
    assert reason in step.reason


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("spark-function-unaddressed", "ports"),
        ("spark-functions-one-subnet", "ports"),
        ("spark-mtu-small", "ports"),
        ("spark-pcie-lanes", "pcie"),
        ("cma-blocks-registration", "memlock"),
    ],
)
def test_what_slows_a_dgx_spark_is_a_step(fault: str, step: str) -> None:
    assert state_of(guide_of("dgx-spark"), step)[0] is StepState.DONE
    assert state_of(guide_of(f"dgx-spark+{fault}"), step)[0] is StepState.TO_DO


def test_a_pair_of_dgx_spark_is_accepted_by_the_rate_of_each_function() -> None:
    step = guide_of("dgx-spark").step("cable-rails")
    assert step is not None
    assert "85 Gb/s or more" in step.reason
    assert "gdrtop fleet bench dgx-spark,NODE2 --memory host" in step.command
    by_nccl = guide_of("dgx-spark").step("cable-nccl")
    assert by_nccl is not None
    assert "-e 4G" in by_nccl.command  # of 95 GiB that are free


def test_acs_redirects_are_cleared_now_and_at_every_boot() -> None:
    host = SimulatedHost("hgx-h100+acs-on")
    step = guide_on(host).step("acs")
    assert step is not None
    assert step.plan is not None
    assert {command.argv[0] for command in step.plan.steps if command.argv} == {"setpci", "update-grub"}
    file = next(command.file for command in step.plan.steps if command.file)
    assert file.path == "/etc/default/grub.d/gdrtop-acs.cfg"
    host.tree.add(file.path, file.text or "")
    host.reboot()
    assert state_of(guide_on(host), "acs")[0] is StepState.DONE


def test_while_the_iommu_translates_acs_is_only_cleared_for_the_next_boots() -> None:
    commands = commands_of(guide_on(SimulatedHost("hgx-h100+acs-on,iommu-translated")), "acs")
    assert [command.partition(" ")[0] for command in commands[:3]] == [
        "/etc/default/grub.d/gdrtop-iommu.cfg",
        "/etc/default/grub.d/gdrtop-acs.cfg",
        "update-grub",
    ]
    assert not any(command.startswith("setpci") for command in commands)
