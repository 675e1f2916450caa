"""Explanations of modprobe's errors, from the messages of kmod and the kernel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.modprobe_errors import explain

LOAD = ("modprobe", "nvidia_peermem")
INVALID = "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument"
NO_LOG = Unknown(Reason.NEEDS_ROOT, "dmesg")


@pytest.mark.parametrize(
    ("printed", "kernel", "explanation"),
    [
        (INVALID, (), "built without OFED's peer-memory symbols"),
        (INVALID, NO_LOG, "needs root); if the kernel log shows nothing, this means"),
        (
            INVALID,
            ("nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",),
            "a different version of ib_register_peer_memory_client",
        ),
        (
            INVALID,
            ("nvidia-peermem nv_mem_client_init:667 ERROR error while registering traditional client",),
            "is nv_peer_mem",
        ),
        (
            "modprobe: ERROR: could not insert 'nvidia_peermem': Unknown symbol in module, or unknown param…",
            ("nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)",),
            "no loaded module exports ib_register_peer_memory_client",
        ),
        (
            "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules/6.8.0-31-generic",
            (),
            "no such module file",
        ),
        (
            "modprobe: ERROR: could not insert 'nvidia_peermem': Key was rejected by service",
            NO_LOG,
            "does not trust its signature",
        ),
        (
            "modprobe: ERROR: could not insert 'nvidia_peermem': Operation not permitted",
            ("Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",),
            "lockdown is on",
        ),
        (
            "modprobe: ERROR: could not insert 'nvidia_peermem': Exec format error",
            ("nvidia_peermem: version magic '6.8.0-31' should be '6.8.0-45'",),
            "built for another kernel",
        ),
        # The name in quotes is a dependency's.
        ("modprobe: ERROR: could not insert 'nvidia': No such device", (), "nvidia found no device"),
        ("modprobe: ERROR: Error running install command '/bin/false' for module", (), "an install line"),
    ],
)
def test_what_kmod_and_the_kernel_say_is_explained(printed: str, kernel: object, explanation: str) -> None:
    assert explanation in explain(LOAD, [printed], kernel)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "printed",
    ["modprobe: FATAL: Module nvidia_uvm is in use.", "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm"],
)
def test_what_holds_a_module_is_named(printed: str) -> None:
    explanation = explain(("rmmod", "nvidia"), [printed], ())
    assert "is in use" in explanation
    assert ("by nvidia_uvm" in explanation) == ("in use by" in printed)


def test_invalid_argument_of_another_module_is_not_blamed_on_peer_memory() -> None:
    assert "peer" not in explain(("modprobe", "nvidia"), [INVALID.replace("nvidia_peermem", "nvidia")], ())


def test_other_programs_speak_for_themselves() -> None:
    assert explain(("systemctl", "restart", "openibd"), ["Job for openibd.service failed."], ()) == ""


@pytest.mark.slow
@given(st.lists(st.text(max_size=300), max_size=6), st.lists(st.text(max_size=300), max_size=6))
def test_no_output_crashes_it(printed: list[str], kernel: list[str]) -> None:
    explain(LOAD, printed, kernel)
