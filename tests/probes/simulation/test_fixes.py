"""Every fix is run: its finding goes away, or a table says why it cannot."""

import pytest

from probes.base.plan import Plan, Step
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.node.system.services import set_fabric_manager_version
from tests.support.simulated_commands import end_job, found_on, node, run, run_step
from tests.support.tiers import USUAL_FAULTS, usual

# gdrtop never runs these.
NEVER_RUN = {
    *("apt-get", "curl", "dnf", "dpkg", "rpm", "tdnf", "wget", "zypper"),
    "awk",
    "dkms",
    "dracut",
    "git",
    "kubectl",
    "mlxconfig",
    "mlxfwreset",
    "mokutil",
    "rdma_topo",
    "update-initramfs",
}

_ASKS = "it only asks, and somebody has to read the answer"
_NO_SUCH_PROGRAM = "it asks a program that the simulated node has not"
# Fault -> why what can be run of its fix leaves the finding.
STAYS = {
    "spark-function-down": "the address of the function is for a person to choose",
    "peermem-reference-leak": _NO_SUCH_PROGRAM,
    "p2p-topology-refused-force-pcie": _NO_SUCH_PROGRAM,
    "port-down": _NO_SUCH_PROGRAM,
    "port-link-training": _NO_SUCH_PROGRAM,
    "port-recovering": _NO_SUCH_PROGRAM,
    "port-held-down": _ASKS,
    "no-subnet-manager": "nobody answers: the subnet manager is elsewhere",
    "subnet-manager-stalled": _ASKS,
    "half-rate": _NO_SUCH_PROGRAM,
    "one-lane": _NO_SUCH_PROGRAM,
    "roce-bond-port-down": _ASKS,
    "roce-class-not-lossless": _ASKS,
    "roce-trust-pcp": _ASKS,
    "roce-gid-wrong-namespace": _ASKS,
    "nic-without-driver": "the driver is loaded, and has left this device: a reboot",
    "nic-without-rdma-device": "the driver is loaded; the simulated node has no devlink to ask further",
    "nic-firmware-mismatch": _NO_SUCH_PROGRAM,
    **dict.fromkeys(
        ("firmware-below-floor", "firmware-below-floor-oem", "firmware-below-floor-without-vfs"),
        _NO_SUCH_PROGRAM,
    ),
    **dict.fromkeys(("optic-hot", "optic-hotter", "optic-shutdown"), "a person cools the module"),
    "nic-health-errors": _NO_SUCH_PROGRAM,
    "fw-resources-exhausted": _NO_SUCH_PROGRAM,
    "nic-firmware-command-failed": _NO_SUCH_PROGRAM,
    "gpu-without-driver": "the driver is loaded, and did not take this GPU: its log tells",
    "nvlink-down": _NO_SUCH_PROGRAM,
    "gpu-fabric-not-registered": _ASKS,
    "nvshmem-needs-peermem": "built without peer-memory symbols, as the step says",
    "hybrid-ep-needs-peermem": "built without peer-memory symbols, as the step says",
    "perftest-port-in-use": _NO_SUCH_PROGRAM,
}

# What a person does before the rest of a plan can be run, as commands; the job has ended by then.
BY_A_PERSON: dict[str, tuple[tuple[str, str], ...]] = {
    "module-blacklisted": (("rm /etc/modprobe.d/blacklist-gdr.conf", ""),),
    "module-blacklisted-install": (("rm /etc/modprobe.d/disable-peermem.conf", ""),),
    "peermem-parameter-invalid": (("rm /etc/modprobe.d/nvidia-peermem.conf", ""),),
    "peermem-parameter-wrong": (("rm /etc/modprobe.d/nvidia-peermem.conf", ""),),
    "peermem-parameter-persistent-off": (("rm /etc/modprobe.d/nvidia-peermem.conf", ""),),
    "peermem-parameter-legacy-ofed": (
        ("tee /etc/modprobe.d/nvidia-peermem.conf", "options nvidia-peermem peerdirect_support=1\n"),
    ),
    "peermem-not-persistent": (("tee /etc/modules-load.d/nvidia-peermem.conf", "nvidia-peermem\n"),),
    "memlock-scheduler": (
        ("mkdir -p /etc/systemd/system/slurmd.service.d", ""),
        ("tee /etc/systemd/system/slurmd.service.d/memlock.conf", "[Service]\nLimitMEMLOCK=infinity\n"),
    ),
    "memlock-container-runtime": (
        ("mkdir -p /etc/systemd/system/containerd.service.d", ""),
        ("tee /etc/systemd/system/containerd.service.d/memlock.conf", "[Service]\nLimitMEMLOCK=infinity\n"),
    ),
    "memlock-login": (("rm /etc/security/limits.d/zz-hardening.conf", ""),),
    "imex-down": (
        ("mkdir -p /etc/nvidia-imex", ""),
        ("tee /etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n10.0.0.2\n"),
    ),
    "nccl-conf-ignored-lines": (("tee /etc/nccl.conf", "NCCL_DEBUG=WARN\n"),),
}


def is_for_a_person(step: Step) -> bool:
    return step.is_instruction or step.argv[:1] in {(name,) for name in NEVER_RUN} or "reboot" in step.argv


def first_of(plan: Plan) -> list[Step]:
    """Return the steps before the first manual one."""
    steps = []
    for step in plan.steps:
        if is_for_a_person(step):
            break
        steps.append(step)
    return steps


def fixes_of(name: str) -> dict[str, Plan]:
    """Return finding -> plan for a fault."""
    found = found_on(node(f"{FAULTS[name].on}+{name}"))
    # Findings from jobs' logs are not here: they need a look at the running jobs, and their fixes are manual.
    named = (found[find] for find in sorted(FAULTS[name].finds) if find in found)
    return {finding.id: finding.fix for finding in named if finding.fix is not None}


@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_running_a_fix_removes_the_finding(name: str) -> None:
    for finding, plan in fixes_of(name).items():
        steps = first_of(plan)
        whole = all(step.is_instruction for step in plan.steps[len(steps) :])
        if not steps or not whole:
            continue
        host = node(f"{FAULTS[name].on}+{name}")
        well = True
        for step in steps:
            well = well and run_step(host, step).exit_status == 0
        mended = well and finding not in found_on(host)
        assert mended or name in STAYS, (
            f"{finding} is found after its fix too: correct the fix, or say why it stays in STAYS here"
        )
        assert not mended or name not in STAYS, f"the fix of {finding} works: remove {name} from STAYS"


@pytest.mark.parametrize(
    "name", usual(BY_A_PERSON, {"module-blacklisted", "peermem-not-persistent", "memlock-login"})
)
def test_running_a_fix_after_its_manual_steps_removes_the_finding(name: str) -> None:
    for finding, plan in fixes_of(name).items():
        host = node(f"{FAULTS[name].on}+{name}")
        end_job(host)
        for command, given in BY_A_PERSON[name]:
            assert run(host, command, given)[0] == 0
        for step in plan.steps:
            if not is_for_a_person(step):
                performed = run_step(host, step)
                assert performed.exit_status == 0, performed.lines
        assert finding not in found_on(host)


def test_exceptions_name_existing_faults() -> None:
    assert set(STAYS) | set(BY_A_PERSON) <= set(FAULTS)


@pytest.mark.slow
def test_a_new_driver_installs_its_fabric_manager() -> None:
    host = node("hgx-h100+driver-half-updated")
    plan = fixes_of("driver-half-updated")["driver-upgrade-blocked"]
    assert "Install nvidia-fabricmanager 595.71.05" in plan.steps[0].why
    end_job(host)
    set_fabric_manager_version(host.tree, "595.71.05")
    for step in plan.steps:
        if not is_for_a_person(step):
            performed = run_step(host, step)
            assert performed.exit_status == 0, performed.lines
    left = found_on(host)
    assert not {"driver-half-updated", "driver-upgrade-blocked", "fabric-manager-down"} & set(left)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["acs-on", "pcie-devctl-read-request", "mtu-small", "peermem-not-loaded", "dev-infiniband-missing"],
)
def test_undoing_a_fix_restores_the_finding(name: str) -> None:
    for finding, plan in fixes_of(name).items():
        host = node(f"{FAULTS[name].on}+{name}")
        for step in first_of(plan):
            assert run_step(host, step).exit_status == 0
        for step in reversed(first_of(plan)):
            assert not step.undo or host.perform(step.undo).exit_status == 0
        assert finding in found_on(host)
