"""What decides one kernel's next start, read from files: modules, rules, command line, boot image, keys."""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import hardware_of
from probes.facts.gpudirect_vendors import EFA_PEERMEM
from probes.facts.kernel.boot import BootFacts
from probes.facts.kernel.boot_loader import GRUB_SETTINGS, BootLoader
from probes.facts.kernel.installed_modules import InstalledModules, read_installed
from probes.facts.kernel.modprobe_config import MODPROBE_DIRECTORIES, LoadingRules, read_rules
from probes.facts.kernel.next_boot import NextLine, read_grub_options, read_next_line, read_times
from probes.host.protocol import Host
from probes.queries.modules import PEERMEM, gpu_functions, mlx4_functions, mlx5_functions
from probes.snapshot.examination import Examination

OLD_PEERMEM, NOUVEAU = "nv_peer_mem", "nouveau"
GPU_MODULES = ("nvidia", "nvidia_uvm")
SLINGSHOT_MODULES = ("cxi_ss1", "cxi_user")
_CORE = ("ib_core", "ib_uverbs")
_NIC_MODULES = {"mlx5": ("mlx5_core", "mlx5_ib"), "mlx4": ("mlx4_core", "mlx4_ib")}
_WORDS = ("nvidia", "nouveau", "mlx", "ib_", "nv_peer")
_MAX_FILES = 64
_SECONDS = 2.0


@dataclass(frozen=True)
class Hardware:
    """The devices that need modules."""

    gpus: int
    families: tuple[str, ...]  # of NICs: "mlx5", "mlx4"
    others: tuple[str, ...]  # drivers of other RDMA NICs: "efa", "irdma", "bnxt_re"

    @property
    def nic_modules(self) -> tuple[str, ...]:
        """Return the modules of the NICs in load order."""
        named = [name for family in self.families for name in _NIC_MODULES[family]]
        if self.is_slingshot:
            return SLINGSHOT_MODULES
        return (*_CORE, *named, *self.others)

    @property
    def is_slingshot(self) -> bool:
        """Return whether all NICs are Slingshot's, which need no RDMA stack."""
        return not self.families and self.others == SLINGSHOT_MODULES[:1]

    @property
    def is_efa(self) -> bool:
        """Return whether all NICs are EFAs, which never use nvidia_peermem."""
        return not self.families and self.others == ("efa",)


@dataclass(frozen=True)
class Start:
    """One kernel's next start."""

    modules: InstalledModules
    is_running: bool
    rules: LoadingRules  # of modprobe.d and modules-load.d, with the next command line
    line: Maybe[NextLine]
    configured: Maybe[str]  # the options of GRUB's settings, which grub.cfg has only after update-grub
    image: Maybe[str]  # the initial RAM disk
    times: Maybe[dict[str, int]]  # when files were changed, seconds since 1970
    settings: tuple[str, ...]  # files of modprobe.d about GPU and RDMA modules
    keys: dict[str, Maybe[bool]]  # file of a key that DKMS signs with -> the firmware's shim trusts it


def hardware(examination: Examination) -> Maybe[Hardware]:
    """Return what the PCI bus and the RDMA devices show."""
    gpus, mlx5, mlx4 = gpu_functions(examination), mlx5_functions(examination), mlx4_functions(examination)
    if isinstance(gpus, Unknown):
        return gpus
    if isinstance(mlx5, Unknown):
        return mlx5
    if isinstance(mlx4, Unknown):
        return mlx4
    families = tuple(name for name, cards in (("mlx5", mlx5), ("mlx4", mlx4)) if cards)
    drivers = {known(nic.driver, "") for nic in hardware_of(examination.node.rdma)}
    others = sorted(name for name in drivers if name and not name.startswith("mlx"))
    return Hardware(len(gpus), families, tuple(others[:8]))


def read_start(
    host: Host,
    examination: Examination,
    boot: Maybe[BootFacts],
    devices: Hardware,
    keys: dict[str, Maybe[bool]],
    release: str,
) -> Start:
    """Read what decides the next start of the kernel `release`; `keys` as from `read_keys`."""
    names = (*devices.nic_modules, *GPU_MODULES, PEERMEM, OLD_PEERMEM, NOUVEAU, EFA_PEERMEM)
    modules = read_installed(host, release, names)
    line = read_next_line(host, release)
    kernel = examination.node.kernel
    running = examination.node.kernel_release == release
    cmdline: Maybe[str] = line if isinstance(line, Unknown) else line.line
    if isinstance(cmdline, Unknown) and not isinstance(kernel, Unknown):
        cmdline = kernel.cmdline  # the best guess: `command-line` says that it is one
    image, settings = _image(boot, release), _settings(host)
    files = [known(image, ""), *settings]
    files += [entry.path for name in (PEERMEM, "ib_core") if (entry := modules.entry(name)) is not None]
    return Start(
        modules=modules,
        is_running=running,
        rules=read_rules(host, cmdline),
        line=line,
        configured=_configured(host, boot),
        image=image,
        times=read_times(host, files),
        settings=settings,
        keys=keys,
    )


def read_keys(host: Host, boot: Maybe[BootFacts]) -> dict[str, Maybe[bool]]:
    """Ask mokutil whether shim trusts each key that DKMS may sign with (mokutil(1), --test-key)."""
    keys = () if isinstance(boot, Unknown) else known(boot.mok_keys, ())
    return {printable(key, 256): _is_enrolled(host, key) for key in keys[:4]}


def _is_enrolled(host: Host, key: str) -> Maybe[bool]:
    answer = host.run(("mokutil", "--test-key", key), _SECONDS)
    if isinstance(answer, Unknown):
        return answer
    words = f"{answer.stdout} {answer.stderr}"
    if "already enrolled" in words:
        return True
    if "not enrolled" in words:
        return False
    return Unknown(Reason.MALFORMED, f"mokutil --test-key {key}", printable(" ".join(words.split()), 120))


def _configured(host: Host, boot: Maybe[BootFacts]) -> Maybe[str]:
    """Return the options of GRUB's settings; boot loader entries do not come from them."""
    if isinstance(boot, Unknown) or boot.loader is not BootLoader.GRUB:
        return Unknown(Reason.NOT_THERE, GRUB_SETTINGS)
    return read_grub_options(host)


def _image(boot: Maybe[BootFacts], release: str) -> Maybe[str]:
    """Return the kernel's initial RAM disk."""
    kernels = boot if isinstance(boot, Unknown) else boot.kernels
    if isinstance(kernels, Unknown):
        return kernels
    absent = Unknown(Reason.NOT_THERE, "/boot", "no initial RAM disk")
    return next((kernel.initramfs for kernel in kernels if kernel.release == release), absent)


def _settings(host: Host) -> tuple[str, ...]:
    """Return the files of modprobe.d that name GPU or RDMA modules."""
    found = []
    for directory in MODPROBE_DIRECTORIES[:1]:  # only the admin's own files change without a package
        names = [name for name in known(host.names(directory), ()) if name.endswith(".conf")]
        for name in names[:_MAX_FILES]:
            text = known(host.read(f"{directory}/{name}"), "")
            lines = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
            if any(word in line for line in lines for word in _WORDS):
                found.append(f"{directory}/{name}")
    return tuple(found)
