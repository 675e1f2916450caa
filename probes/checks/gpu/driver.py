"""Checks of the GPU driver: its libraries, its start, its persistence."""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import Plan, instruction, plan_or_none
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.checks.gpu.devices import answer_now, asked, bdfs_of, gpus_of, names_of, reported_in_log
from probes.facts.kernel.log import LogKind
from probes.facts.system.services import ServiceState
from probes.host.nvml import NvmlGpu
from probes.plans.gpu import persistence_on
from probes.queries.evidence_list import first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, needs, passed, unknown
from probes.queries.kernel_log import log_messages, of_log
from probes.queries.references import DRIVER_README
from probes.snapshot.examination import Examination

AREA = Area("gpu")
_MISMATCH = "driver/library version mismatch"


@AREA.check(
    "driver-library-mismatch",
    Severity.CRITICAL,
    "The driver's libraries and the loaded kernel driver have different versions",
    "NVIDIA Management Library, NVML_ERROR_LIB_RM_VERSION_MISMATCH, "
    "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html",
    ok="The driver's libraries match the loaded kernel driver",
    impact="New CUDA programs and nvidia-smi fail. Running programs go on.",
)
def library_mismatch(examination: Examination) -> Outcome:
    """Compare NVML's answer and the versions of the driver's libraries with the kernel driver."""
    facts = examination.node.gpus
    if isinstance(facts, Unknown):
        return unknown(needs("the driver's version", facts))
    driver = facts.driver
    if isinstance(driver.version, Unknown):
        if driver.version.reason is Reason.NOT_THERE:
            return passed(Evidence("/sys/module/nvidia", "the driver is not loaded"))
        return unknown(needs("the driver's version", driver.version))
    loaded = Evidence("/sys/module/nvidia/version", driver.version)
    files = () if isinstance(examination.libraries, Unknown) else _of_driver(examination)
    shown = tuple(Evidence(path, version) for path, version in files)
    complains = driver.nvml is not None and driver.nvml.startswith(_MISMATCH)
    # Where one of several files matches, the loader's configuration decides, and NVML's answer counts.
    if complains or (files and all(version != driver.version for _, version in files)):
        return found(
            "The driver's packages were updated while the old driver was loaded.",
            loaded,
            *first_n(shown),
            *((Evidence("NVML", driver.nvml),) if driver.nvml else ()),
            fix=Plan(
                "Load the driver that is installed",
                (
                    instruction("Drain the node and reboot"),
                    instruction("Or stop everything that uses the GPUs, and reload the modules"),
                ),
                needs_reboot=True,
                disturbs="every job on this node",
                note="Hold the driver's packages (apt-mark hold) to update in a maintenance window only",
            ),
            devices=("nvidia",),
        )
    if driver.nvml is None:
        return passed(loaded, Evidence("NVML", "it answers"), *first_n(shown))
    if not files:
        return unknown(needs("NVML", driver.nvml), loaded)
    return passed(loaded, *first_n(shown))


def _of_driver(examination: Examination) -> tuple[tuple[str, str], ...]:
    """Path and version of the installed NVML libraries."""
    if isinstance(examination.libraries, Unknown):
        return ()
    return tuple(
        (one.path, one.version)
        for one in examination.libraries.found.get("libnvidia-ml.so.1", ())
        if not isinstance(one.version, Unknown)
    )


@AREA.check(
    "gpu-driver-start-failed",
    Severity.CRITICAL,
    "The driver could not start a GPU",
    DRIVER_README + "commonproblems.html",
    ok="The driver has started every GPU",
    impact="CUDA does not see this GPU.",
)
def start_failed(examination: Examination) -> Outcome:
    """Find failures of RmInitAdapter and probe in the kernel log."""
    messages = log_messages(examination, LogKind.GPU_DRIVER, lambda one: "API mismatch" not in one.text)
    if isinstance(messages, Outcome):
        return messages
    named = {one.bdf for one in messages if one.bdf}
    back = answer_now(examination, named)
    fix = Plan(
        "Restart the GPU",
        (
            instruction("Check that the driver and its firmware (GSP) support this GPU"),
            instruction("Drain and power-cycle the node"),
            instruction("Replace the GPU if it happens again"),
        ),
        disturbs="every job on this node",
    )
    cause = "RmInitAdapter or probe failed"
    outcome = of_log(
        examination,
        messages,
        f"{cause} once. The GPU answers now." if back else f"{cause}. The numbers in the message say where.",
        fix,
        Severity.NOTE if back else None,
    )
    if back:
        return replace(outcome, impact="None now.")
    silent = [one.bdf for one in known(gpus_of(examination), ()) if not answer_now(examination, {one.bdf})]
    roots = reported_in_log(examination, named) or ("gpu-missing-from-nvml",)
    return replace(outcome, part_of=roots if named <= set(silent) else ())


def _service_runs(examination: Examination, name: str) -> Maybe[bool]:
    services = examination.services
    if isinstance(services, Unknown):
        return services
    state = services.services[name].state
    if isinstance(state, Unknown):
        return False if state.reason is Reason.NOT_THERE else state
    return state is ServiceState.ACTIVE


_PERSISTENCE = "NVIDIA driver persistence, https://docs.nvidia.com/deploy/driver-persistence/index.html"


def _not_persistent(nvml: NvmlGpu) -> Maybe[bool]:
    return nvml.persistence if isinstance(nvml.persistence, Unknown) else not nvml.persistence


@AREA.check(
    "persistence-off",
    Severity.NOTE,
    "Persistence mode is disabled",
    _PERSISTENCE,
    ok="The driver keeps idle GPUs initialized",
    impact="The first CUDA call and every nvidia-smi take seconds, and settings get lost.",
)
def persistence_off(examination: Examination) -> Outcome:
    """Find persistence mode off without nvidia-persistenced; one of the two is enough."""
    chosen, otherwise = asked(examination, _not_persistent, "persistence mode off")
    if not chosen:
        return otherwise
    daemon = _service_runs(examination, "nvidia-persistenced")
    if isinstance(daemon, Unknown):
        return unknown(needs("the services", daemon))
    if daemon:
        return passed(Evidence("systemctl is-active nvidia-persistenced", "active"))
    return found(
        f"{names_of(chosen)}: the driver shuts down a GPU when its last program ends.",
        *first_n(Evidence(f"NVML persistence mode of GPU{gpu.index}", "disabled") for gpu in chosen),
        Evidence("systemctl is-active nvidia-persistenced", "inactive"),
        fix=plan_or_none(persistence_on(examination)),
        devices=bdfs_of(chosen),
    )


@AREA.check(
    "persistence-off-daemon-runs",
    Severity.NOTE,
    "nvidia-persistenced runs without persistence mode",
    _PERSISTENCE,
    ok="nvidia-persistenced has enabled persistence mode, or does not run",
    impact="The first CUDA call and every nvidia-smi take seconds, and settings get lost.",
)
def persistence_mode_off(examination: Examination) -> Outcome:
    """Find persistence mode off though the daemon runs: it was started with --no-persistence-mode."""
    chosen, otherwise = asked(examination, _not_persistent, "persistence mode off")
    if not chosen:
        return otherwise
    daemon = _service_runs(examination, "nvidia-persistenced")
    if isinstance(daemon, Unknown):
        return unknown(needs("the services", daemon))
    if not daemon:
        return passed(Evidence("systemctl is-active nvidia-persistenced", "inactive: see persistence-off"))
    return found(
        f"{names_of(chosen)}: some packages start the daemon with --no-persistence-mode.",
        *first_n(Evidence(f"NVML persistence mode of GPU{gpu.index}", "disabled") for gpu in chosen),
        Evidence("systemctl is-active nvidia-persistenced", "active"),
        fix=plan_or_none(persistence_on(examination)),
        devices=bdfs_of(chosen),
    )
