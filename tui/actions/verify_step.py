"""Whether a step did what it says: some programs exit with 0 although nothing was changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probes.base.plan import Step

# setpci(8): REGISTER=VALUE:MASK, both hexadecimal; VALUE alone sets the whole register.
_SETTING = re.compile(r"([A-Za-z0-9_+.@]{1,40})=([0-9a-fA-F]{1,8})(?::([0-9a-fA-F]{1,8}))?")


@dataclass(frozen=True)
class ReadBack:
    """A register that a step has set, and how to ask for it."""

    argv: tuple[str, ...]
    value: int
    mask: int

    def complaint(self, printed: Sequence[str]) -> str:
        """What is wrong with the answer; "" where the register is as it was set."""
        told = next(
            (line.strip() for line in reversed(printed) if re.fullmatch(r"[0-9a-fA-F]+", line.strip())), ""
        )
        if not told:
            return "setpci exited with 0, but the register cannot be read back: is the function still there?"
        now = int(told[:8], 16)
        if (now ^ self.value) & self.mask == 0:
            return ""
        return (
            f"setpci exited with 0, but the register still has {told}: it was not written"
            " (kernel lockdown, or the hardware does not allow it)"
        )


def read_back(step: Step) -> ReadBack | None:
    """What to read after a step; None: its exit status says enough."""
    if len(step.argv) < 2 or step.argv[0] != "setpci":
        return None
    setting = _SETTING.fullmatch(step.argv[-1])
    if setting is None:
        return None
    register, value, mask = setting.groups()
    whole = (
        0xFFFFFFFF if register.lower().endswith(".l") else 0xFF if register.lower().endswith(".b") else 0xFFFF
    )
    return ReadBack((*step.argv[:-1], register), int(value, 16), int(mask, 16) if mask else whole)
