"""Verify a step: setpci exits with 0 even if the register was not written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.base.frozen import frozen
from probes.base.plan import Step

# setpci(8): REGISTER=VALUE:MASK, both hexadecimal; VALUE alone sets the whole register.
_SETTING = re.compile(r"([A-Za-z0-9_+.@]{1,40})=([0-9a-fA-F]{1,8})(?::([0-9a-fA-F]{1,8}))?")


@frozen
class RegisterCheck:
    """A register that a step has written, and how to read it back."""

    argv: tuple[str, ...]
    value: int
    mask: int

    def problem(self, printed: Sequence[str]) -> str:
        """Return what is wrong with the answer, or "" if the register has the new value."""
        text = next(
            (line.strip() for line in reversed(printed) if re.fullmatch(r"[0-9a-fA-F]+", line.strip())), ""
        )
        if not text:
            return "setpci exited with 0, but the register cannot be read back; is the function still there?"
        now = int(text[:8], 16)
        if (now ^ self.value) & self.mask == 0:
            return ""
        return (
            f"setpci exited with 0, but the register was not written and still has {text}"
            " (kernel lockdown, or the hardware does not allow it)"
        )


def register_check(step: Step) -> RegisterCheck | None:
    """Return what to read after a step, or None if its exit status is enough."""
    if len(step.argv) < 2 or step.argv[0] != "setpci":
        return None
    setting = _SETTING.fullmatch(step.argv[-1])
    if setting is None:
        return None
    register, value, mask = setting.groups()
    whole = (
        0xFFFFFFFF if register.lower().endswith(".l") else 0xFF if register.lower().endswith(".b") else 0xFFFF
    )
    return RegisterCheck((*step.argv[:-1], register), int(value, 16), int(mask, 16) if mask else whole)
