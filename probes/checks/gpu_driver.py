"""Checks of the GPU driver: its libraries, its start, its persistence."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.gpu import answer_now, asked, bdfs_of, names_of
from probes.checks.log_messages import log_messages, of_log
from probes.checks.references import DRIVER_README
from probes.checks.wording import at_most
from probes.examination import Examination
from probes.kernel_log import LogKind
from probes.nvml import NvmlGpu
from probes.plan import Plan, instruction, plan_or_none
from probes.plans.gpu_persistence import persistence_on
from probes.services import ServiceState
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("gpu")
_MISMATCH = "driver/library version mismatch"


@AREA.check(
    "driver-library-mismatch",
    Severity.CRITICAL,
    "the driver's libraries are of another version than the loaded kernel driver",
    "NVIDIA Management Library, NVML_ERROR_LIB_RM_VERSION_MISMATCH, "
    "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html",
)
def library_mismatch(examination: Examination) -> Outcome:
    """NVML's complaint, and the versions in the names of the driver's libraries."""
    facts = examination.node.gpus
    if isinstance(facts, Unknown):
        return unsure(f"needs the GPU driver: {facts}")
    driver = facts.driver
    if isinstance(driver.version, Unknown):
        if driver.version.reason is Reason.NOT_THERE:
            return passed(Evidence("/sys/module/nvidia", "the driver is not loaded"))
        return unsure(f"needs the driver's version: {driver.version}")
    loaded = Evidence("/sys/module/nvidia/version", driver.version)
    files = () if isinstance(examination.libraries, Unknown) else _of_driver(examination)
    shown = tuple(Evidence(path, version) for path, version in files)
    complains = driver.nvml is not None and driver.nvml.startswith(_MISMATCH)
    # Where one of several files is right, the loader's configuration decides: NVML's word counts.
    if complains or (files and all(version != driver.version for _, version in files)):
        return found(
            "the packages were updated under the running driver: new CUDA programs fail, old ones go on",
            loaded,
            *at_most(shown),
            *((Evidence("NVML", driver.nvml),) if driver.nvml else ()),
            fix=Plan(
                "Load the driver that is installed",
                (
                    instruction(
                        "drain the node and reboot; or stop all users of the GPUs and reload the modules"
                    ),
                ),
                needs_reboot=True,
                disturbs="every job on this node",
                note="hold the driver's packages (apt-mark hold), so that it happens in a window only",
            ),
            devices=("nvidia",),
        )
    if driver.nvml is None:
        return passed(loaded, Evidence("NVML", "it answers"), *at_most(shown))
    if not files:
        return unsure("needs the driver's libraries: NVML does not answer, and none was found", loaded)
    return passed(loaded, *at_most(shown))


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
    "the driver could not start a GPU",
    DRIVER_README + "commonproblems.html",
)
def start_failed(examination: Examination) -> Outcome:
    """RmInitAdapter and probe failures in the kernel log."""
    messages = log_messages(examination, LogKind.GPU_DRIVER, lambda one: "API mismatch" not in one.text)
    if isinstance(messages, Outcome):
        return messages
    back = answer_now(examination, {one.bdf for one in messages})
    fix = Plan(
        "Find out why",
        (
            instruction(
                "compare driver, GPU generation and firmware (GSP); the number behind the line says more"
            ),
            instruction("drain and power-cycle the node; replace the GPU where it comes back"),
        ),
        disturbs="every job on this node",
    )
    told = "it failed once and answers now" if back else "CUDA does not see it"
    return of_log(examination, messages, told, fix, Severity.NOTE if back else None)


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
    "persistence-off", Severity.NOTE, "the driver forgets its GPUs between two programs", _PERSISTENCE
)
def persistence_off(examination: Examination) -> Outcome:
    """Persistence mode off, and no nvidia-persistenced; either of the two is enough."""
    chosen, otherwise = asked(examination, _not_persistent, "persistence mode off")
    if not chosen:
        return otherwise
    daemon = _service_runs(examination, "nvidia-persistenced")
    if isinstance(daemon, Unknown):
        return unsure(f"needs to know whether nvidia-persistenced runs: {daemon}")
    if daemon:
        return passed(Evidence("systemctl is-active nvidia-persistenced", "active"))
    return found(
        f"{names_of(chosen)}: the first CUDA call and every nvidia-smi take seconds, settings get lost",
        *at_most(Evidence(f"NVML persistence mode of GPU{gpu.index}", "disabled") for gpu in chosen),
        Evidence("systemctl is-active nvidia-persistenced", "inactive"),
        fix=plan_or_none(persistence_on(examination)),
        devices=bdfs_of(chosen),
    )


@AREA.check(
    "persistence-off-daemon-runs",
    Severity.NOTE,
    "nvidia-persistenced runs, but persistence mode is off",
    _PERSISTENCE,
)
def persistence_mode_off(examination: Examination) -> Outcome:
    """Persistence mode off though the daemon runs: it was started with --no-persistence-mode."""
    chosen, otherwise = asked(examination, _not_persistent, "persistence mode off")
    if not chosen:
        return otherwise
    daemon = _service_runs(examination, "nvidia-persistenced")
    if isinstance(daemon, Unknown):
        return unsure(f"needs to know whether nvidia-persistenced runs: {daemon}")
    if not daemon:
        return passed(Evidence("systemctl is-active nvidia-persistenced", "inactive: see persistence-off"))
    return found(
        f"{names_of(chosen)}: some packages start the daemon with --no-persistence-mode; it waits to be told",
        *at_most(Evidence(f"NVML persistence mode of GPU{gpu.index}", "disabled") for gpu in chosen),
        Evidence("systemctl is-active nvidia-persistenced", "active"),
        fix=plan_or_none(persistence_on(examination)),
        devices=bdfs_of(chosen),
    )
