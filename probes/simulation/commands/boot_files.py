"""update-grub, grub2-mkconfig, update-initramfs and dracut: what the next boot reads."""

from __future__ import annotations

from probes.simulation.commands.command_result import CommandResult, Invocation, done, unsupported
from probes.simulation.node.system.system import GRUB_CONFIG

_SECONDS = 20.0


def _boot_menu(call: Invocation) -> CommandResult:
    """Write nothing: a simulated boot takes its command line from the settings behind this menu."""
    place = GRUB_CONFIG if call.name == "update-grub" else "/boot/grub2/grub.cfg"
    if not call.tree.is_there(place):
        return unsupported(call)
    return done("Generating grub configuration file ...", "done", seconds=_SECONDS)


def _boot_image(call: Invocation) -> CommandResult:
    """Write nothing: a simulated boot loads modules from the disk."""
    tool = "/usr/sbin/update-initramfs" if call.name == "update-initramfs" else "/usr/bin/dracut"
    if not call.tree.is_there(tool):
        return unsupported(call)
    return done(f"Generating boot image of {call.tree.description.kernel}", seconds=_SECONDS)


COMMANDS = {
    "update-grub": _boot_menu,
    "grub2-mkconfig": _boot_menu,
    "update-initramfs": _boot_image,
    "dracut": _boot_image,
}
