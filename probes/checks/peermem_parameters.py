"""Parameters of nvidia_peermem, and which OFED they are for."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import PEERMEM, log_needed, log_of, log_seen, ofed_numbers, ofed_of
from probes.checks.module_need import Need, absent_peermem, loaded_peermem, need_of_peermem, peermem_fault
from probes.checks.references import PEERMEM_MANUAL, PEERMEM_SOURCE
from probes.examination import Examination
from probes.kernel_log import LogKind
from probes.plan import Plan, instruction
from probes.plans.loading import load_step
from probes.plans.peermem import unload_step
from probes.unknown import Reason, Unknown

AREA = Area("modules")


def _parameter(examination: Examination, name: str) -> tuple[str, Evidence] | Outcome:
    """The value of a parameter of the loaded nvidia_peermem; else why there is none."""
    module = loaded_peermem(examination)
    if isinstance(module, Outcome):
        return module
    path = f"/sys/module/nvidia_peermem/parameters/{name}"
    value = module.parameters.get(name)
    if value is None:
        return passed(Evidence(path, "not there: this driver has no such parameter"))
    if isinstance(value, Unknown):
        return unsure(f"{path}: {value}")
    return value, Evidence(path, value)


def _reload(examination: Examination, title: str, first: str) -> Plan:
    steps = (
        instruction(first),
        instruction(
            "rebuild the initramfs where it carries modprobe.d: `update-initramfs -u` or `dracut -f`"
        ),
        unload_step(examination),
        load_step(examination, PEERMEM),
    )
    return Plan(title, steps, disturbs="jobs that register GPU memory through nvidia-peermem must have ended")


@AREA.check(
    "peermem-parameter-wrong",
    Severity.WARNING,
    "nvidia_peermem runs with peerdirect_support=1, which is for MLNX_OFED 4.9 only",
    PEERMEM_MANUAL,
)
def peermem_parameter_wrong(examination: Examination) -> Outcome:
    """The parameter peerdirect_support of the loaded module, and OFED's release."""
    value = _parameter(examination, "peerdirect_support")
    if isinstance(value, Outcome):
        return value
    if value[0] != "1":
        return passed(value[1])
    ofed = ofed_of(examination)
    if isinstance(ofed, Unknown) and ofed.reason is not Reason.NOT_THERE:
        return unsure(f"which OFED runs is unknown: {ofed}", value[1])
    release = "no OFED" if isinstance(ofed, Unknown) else ofed
    numbers = None if isinstance(ofed, Unknown) else ofed_numbers(ofed)
    if numbers is not None and numbers < (5, 0):
        return passed(value[1], Evidence("ofed_info -s", release))
    return found(
        "the option is left over from MLNX_OFED 4.9: with a newer one it switches off the protection "
        "against a deadlock",
        value[1],
        Evidence("ofed_info -s", release),
        fix=_reload(
            examination,
            "Drop the option",
            "delete peerdirect_support=1 from `options nvidia-peermem` in modprobe.d",
        ),
        devices=(PEERMEM,),
    )


@AREA.check(
    "peermem-parameter-legacy-ofed",
    Severity.WARNING,
    "MLNX_OFED 4.9 needs nvidia_peermem with peerdirect_support=1",
    PEERMEM_MANUAL,
)
def peermem_parameter_legacy_ofed(examination: Examination) -> Outcome:
    """The old OFED's own PeerDirect, which the module has to be told of."""
    value = _parameter(examination, "peerdirect_support")
    if isinstance(value, Outcome):
        return value
    ofed = ofed_of(examination)
    if isinstance(ofed, Unknown):
        if ofed.reason is Reason.NOT_THERE:
            return passed(Evidence("ofed_info -s", "no OFED here"))
        return unsure(f"which OFED runs is unknown: {ofed}", value[1])
    numbers = ofed_numbers(ofed)
    if numbers is None or numbers >= (5, 0) or value[0] == "1":
        return passed(value[1], Evidence("ofed_info -s", ofed))
    first = "write `options nvidia-peermem peerdirect_support=1` to /etc/modprobe.d/nvidia-peermem.conf"
    return found(
        "the PeerDirect of MLNX_OFED before 5.0 is another one: GPU memory does not register as it should",
        value[1],
        Evidence("ofed_info -s", ofed),
        fix=_reload(examination, "Tell nvidia-peermem of the old OFED", first),
        devices=(PEERMEM,),
    )


@AREA.check(
    "peermem-parameter-persistent-off",
    Severity.NOTE,
    "nvidia_peermem runs with persistent_api_support=0, the older interface",
    f"{PEERMEM_SOURCE}/nvidia-peermem.c, persistent_api_support",
)
def peermem_parameter_persistent_off(examination: Examination) -> Outcome:
    """The parameter persistent_api_support of the loaded module; 1 is the default since 560.28.03."""
    value = _parameter(examination, "persistent_api_support")
    if isinstance(value, Outcome):
        return value
    if value[0] != "0":
        return passed(value[1])
    return found(
        "with the older interface the driver takes GPU memory back from regions that are still registered",
        value[1],
        fix=_reload(
            examination,
            "Take the default",
            "delete persistent_api_support=0 from `options nvidia-peermem` in modprobe.d",
        ),
        devices=(PEERMEM,),
    )


@AREA.check(
    "peermem-parameter-invalid",
    Severity.CRITICAL,
    "nvidia_peermem refused the value of a parameter (`Invalid argument`)",
    f"{PEERMEM_SOURCE}/nvidia-peermem.c, nv_mem_param_conf_check",
)
def peermem_parameter_invalid(examination: Examination) -> Outcome:
    """What the module said about its parameters when it was loaded."""
    module = absent_peermem(examination)
    if isinstance(module, Outcome):
        return module
    messages = log_of(examination, (LogKind.PEERMEM,), words="invalid")
    if isinstance(messages, Unknown):
        if need_of_peermem(examination) is Need.NOT_NEEDED:
            return passed(Evidence("gdrtop check --only no-gdr-path", f"not needed: {Need.NOT_NEEDED.value}"))
        return log_needed(messages, "invalid … param value")
    messages = tuple(one for one in messages if "param value" in one.text)
    if not messages:
        return passed(*log_seen(examination, messages))
    steps = (
        instruction(
            "correct or delete the line `options nvidia-peermem …` in /etc/modprobe.d (values: 0 or 1)"
        ),
        load_step(examination, PEERMEM),
    )
    return peermem_fault(
        examination,
        "a line of modprobe.d gives nvidia-peermem a value that it does not know",
        *log_seen(examination, messages),
        fix=Plan("Correct the option", steps),
    )
