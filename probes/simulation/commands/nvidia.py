"""nvidia-smi and nvidia-modprobe, as far as they change something."""

from __future__ import annotations

from dataclasses import replace

from probes.facts.gpu.generations import AMPERE, is_before
from probes.simulation.commands.command_result import CommandResult, Invocation, done, failed, unsupported
from probes.simulation.commands.modprobe import modprobe
from probes.simulation.node.model.tree import Tree, uuid_of
from probes.simulation.node.system.services import fabric_state

_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running."
)
_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
_IN_USE = (
    "is currently being used by one or more other processes (e.g. CUDA application or a monitoring "
    "application such as another instance of nvidia-smi). Please first kill all processes using the device "
    "and retry the command or reboot the system to make MIG mode effective."
)
_NO_DEVICES, _NOT_LOADED, _OTHER_VERSION = 6, 9, 18
_OPTIONS = {"-pm": "-pm", "--persistence-mode": "-pm", "-mig": "-mig", "--multi-instance-gpu": "-mig",
            "-i": "-i", "--id": "-i"}  # fmt: skip
_CONTROL_MINOR = 255
_SWITCH = {"0": False, "1": True, "DISABLED": False, "ENABLED": True}


def _nvidia_smi(call: Invocation) -> CommandResult:
    options = {} if call.args == ("-q",) else _options(call.args)
    if options is None or (options and not options.keys() & {"-pm", "-mig"}):
        return unsupported(call)
    tree = call.tree
    if "nvidia" not in tree.live_modules:
        return failed(_NO_DRIVER, exit_status=_NOT_LOADED)
    if tree.description.nvml.refusal:
        return failed(_MISMATCH, exit_status=_OTHER_VERSION)
    gpus = _selected(tree, options.get("-i"))
    if not gpus:
        return failed("No devices were found", exit_status=_NO_DEVICES)
    if not options:
        return done(f"Driver Version{'':<20}: {tree.description.driver.version}", *_states(tree, gpus))
    lines: list[str] = []
    for option, change in (("-pm", _persistence), ("-mig", _mig)):
        if option not in options:
            continue
        wanted = _SWITCH.get(options[option].upper())
        if wanted is None:
            return failed(f"Option {option}: '{options[option]}' is not a valid value.")
        lines += [line for number in gpus for line in change(tree, number, wanted)]
    return done(*lines, "All done.", seconds=0.4 + 0.2 * len(gpus))


def _states(tree: Tree, gpus: list[int]) -> list[str]:
    """Return the part of `nvidia-smi -q` about the NVLink fabric."""
    return [
        line
        for number in gpus
        for line in (
            f"GPU 0000{tree.gpus[number].bdf}".upper(),
            "    Fabric",
            f"        State{'':<21}: {fabric_state(tree, number).title()}",
        )
    ]


def _options(words: tuple[str, ...]) -> dict[str, str] | None:
    """Parse "-i 0 -pm 1" and "--id=0"; None for an unsupported option, or without any."""
    options: dict[str, str] = {}
    left = list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name not in _OPTIONS or (not equals and not left):
            return None
        options[_OPTIONS[name]] = value if equals else left.pop(0)
    return options or None


def _selected(tree: Tree, named: str | None) -> list[int]:
    """Return the GPUs that NVML lists: all, or those named by index, UUID or BDF."""
    nvml = tree.description.nvml
    listed = [number for number in range(len(tree.gpus)) if number not in nvml.unlisted | nvml.lost]
    if named is None:
        return listed
    names = {name.strip().lower() for name in named.split(",")}

    def is_named(number: int) -> bool:
        bdf = tree.gpus[number].bdf
        return bool(names & {str(number), uuid_of(number).lower(), bdf, f"0000{bdf}", bdf[5:]})

    return [number for number in listed if is_named(number)]


def _persistence(tree: Tree, number: int, on: bool) -> list[str]:
    word, gpu = ("Enabled" if on else "Disabled"), f"0000{tree.gpus[number].bdf}".upper()
    if (number in tree.persistent) == on:
        return [f"Persistence mode is already {word} for GPU {gpu}."]
    (tree.persistent.add if on else tree.persistent.discard)(number)
    return [f"{word} persistence mode for GPU {gpu}."]


def _mig(tree: Tree, number: int, on: bool) -> list[str]:
    gpu, file = f"0000{tree.gpus[number].bdf}".upper(), f"/dev/nvidia{number}"
    word, verb = ("Enabled", "enable") if on else ("Disabled", "disable")
    if is_before(tree.description.gpu.capability, AMPERE):
        unable = f"Unable to {verb} MIG Mode for GPU {gpu}: Not Supported"
        return [unable, "Treating as warning and moving on."]
    holders = [link for link, target in list(tree.links.items()) if target == file]
    if (number in tree.mig) != on and any(link.startswith("/proc/") for link in holders):
        pending = f"MIG mode is in pending {verb} state for GPU {gpu}:In use by another client"
        return [f"Warning: {pending}", f"{gpu} {_IN_USE}"]
    (tree.mig.add if on else tree.mig.discard)(number)
    return [f"{word} MIG Mode for GPU {gpu}"]


def _nvidia_modprobe(call: Invocation) -> CommandResult:
    """Load nvidia or nvidia_uvm, and create the device files requested with -c."""
    minors: list[int] = []
    unified = False
    left = list(call.args)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name in ("-u", "--unified-memory"):
            unified = True
            continue
        if name not in ("-c", "--create-nvidia-device-file") or (not equals and not left):
            return _malformed(call)
        number = value if equals else left.pop(0)
        if not number.isascii() or not number.isdecimal() or int(number[:9]) > _CONTROL_MINOR:
            return _malformed(call)
        minors.append(int(number))
    module = "nvidia_uvm" if unified else "nvidia"
    loaded = modprobe(replace(call, name="modprobe", args=(module,), stdin=""))
    if loaded.exit_status:
        return failed(seconds=loaded.seconds)
    for minor in minors:
        # nvidia_uvm creates both at once (nvidia_uvm_mknod).
        own = "/dev/nvidiactl" if minor == _CONTROL_MINOR else f"/dev/nvidia{minor}"
        for file in ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools") if unified else (own,):
            call.tree.add(file, "")
    return done(seconds=loaded.seconds)


def _malformed(call: Invocation) -> CommandResult:
    usage = f"please run `{call.name} --help` for usage information."
    return failed("", f"ERROR: Invalid commandline, {usage}", "")


COMMANDS = {"nvidia-smi": _nvidia_smi, "nvidia-modprobe": _nvidia_modprobe}
