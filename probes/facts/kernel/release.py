"""The running kernel: release, command line, IOMMU, Secure Boot, lockdown, DMA-BUF."""

from __future__ import annotations

import re
import zlib

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, because, first_known, map_known, parse_known
from probes.host.protocol import Host

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CONFIG_LIMIT_BYTES = 4 * 1024 * 1024  # a distribution's config is about 300 KB

# It becomes part of a path, so it has no slash and no leading dot.
_RELEASE = re.compile(r"[0-9][A-Za-z0-9._+~:@-]{0,200}")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_CHOSEN = re.compile(r"\[([a-z_]{1,40})\]")
_NOT_READ = Unknown(Reason.NOT_RECORDED, "kernel config")
_NO_SECURE_BOOT = "booted without UEFI, or /sys/firmware is hidden"
_NOT_FOUND = Unknown(Reason.NOT_THERE, "/proc/config.gz", "this kernel's config was not found")
DMABUF_OPTION = "CONFIG_DMA_SHARED_BUFFER"
# mlx5 needs both for DMA-BUF (mlx5/mr.c).
MLX5_DMABUF_OPTIONS = ("CONFIG_INFINIBAND_USER_MEM", "CONFIG_INFINIBAND_ON_DEMAND_PAGING")

SMMU_SVA_OPTION = "CONFIG_ARM_SMMU_V3_SVA"


@frozen
class KernelFacts:
    """The kernel and its restrictions."""

    release: Maybe[str]  # "6.8.0-45-generic"
    version: Maybe[tuple[int, int]]  # (6, 8)
    cmdline: Maybe[str]
    secure_boot: Maybe[bool]
    lockdown: Maybe[str]  # "none", "integrity", "confidentiality"
    signatures_enforced: Maybe[bool]
    modules_disabled: Maybe[bool]  # kernel.modules_disabled sysctl
    dma_shared_buffer: Maybe[bool]  # CONFIG_DMA_SHARED_BUFFER
    mlx5_dmabuf: Maybe[bool] = _NOT_READ
    """Of MLX5_DMABUF_OPTIONS."""
    smmu_sva: Maybe[bool] = _NOT_READ  # SMMU_SVA_OPTION, which exists on arm64 alone


def probe(host: Host) -> KernelFacts:
    """Read /proc and /sys, and the kernel's config file if there is one."""
    release = read_release(host)
    config = _config(host, release)
    return KernelFacts(
        release=release,
        version=parse_version(release),
        cmdline=read_cmdline(host),
        secure_boot=map_known(because(host.read_bytes(SECURE_BOOT), _NO_SECURE_BOOT), parse_secure_boot),
        lockdown=map_known(host.read("/sys/kernel/security/lockdown"), parse_lockdown),
        signatures_enforced=read_signatures_enforced(host),
        modules_disabled=read_modules_disabled(host),
        dma_shared_buffer=all_set(config, DMABUF_OPTION),
        mlx5_dmabuf=all_set(config, *MLX5_DMABUF_OPTIONS),
        smmu_sva=all_set(config, SMMU_SVA_OPTION),
    )


def read_signatures_enforced(host: Host) -> Maybe[bool]:
    """Return whether the kernel loads only signed modules (Documentation/admin-guide/module-signing.rst)."""
    return _switch(host, "/sys/module/module/parameters/sig_enforce")


def read_modules_disabled(host: Host) -> Maybe[bool]:
    """Return whether modules can no longer be loaded or unloaded (admin-guide/sysctl/kernel.rst)."""
    return _switch(host, "/proc/sys/kernel/modules_disabled")


def read_release(host: Host) -> Maybe[str]:
    """Read the kernel's release in a form that is safe in a path: from osrelease, else /proc/version."""
    source = "/proc/sys/kernel/osrelease"
    text = host.read(source)
    if isinstance(text, Unknown):
        banner = host.read("/proc/version")
        if isinstance(banner, Unknown):
            return text
        source, text = "/proc/version", parse_banner(banner)
    if _RELEASE.fullmatch(text):
        return text
    return Unknown(Reason.MALFORMED, source, "not a kernel release")


def is_release(name: str) -> bool:
    """Return whether a name has the form of a kernel release, and is safe in a path."""
    return _RELEASE.fullmatch(name) is not None


def parse_banner(banner: str) -> str:
    """Return the release in "Linux version 6.8.0-45-generic (buildd@…) …"; "" if there is none."""
    words = banner.split(maxsplit=3)
    return words[2] if len(words) > 2 and words[:2] == ["Linux", "version"] else ""


def parse_version(release: Maybe[str]) -> Maybe[tuple[int, int]]:
    """Return major and minor number of a release: "6.8.0-45-generic" is (6, 8)."""
    match = parse_known(release, _VERSION.match, "kernel release")
    return map_known(match, lambda found: (int(found[1]), int(found[2])))


def read_cmdline(host: Host) -> Maybe[str]:
    """Read the kernel's command line, as one line."""
    return map_known(host.read("/proc/cmdline"), printable)


def parse_lockdown(text: str) -> Maybe[str]:
    """Return the word in brackets of "none [integrity] confidentiality" (security/lockdown/lockdown.c)."""
    match = _CHOSEN.search(text)
    return match[1] if match else Unknown(Reason.MALFORMED, "lockdown", "no word in brackets")


def parse_switch(text: str, source: str = "") -> Maybe[bool]:
    """Parse a kernel switch: Y or 1, N or 0."""
    word = text.strip()
    if word in ("Y", "y", "1"):
        return True
    if word in ("N", "n", "0"):
        return False
    return Unknown(Reason.MALFORMED, source, f"neither yes nor no: {printable(word, 40)}")


def parse_secure_boot(variable: bytes) -> Maybe[bool]:
    """Parse the SecureBoot variable: four bytes of attributes, then 1 or 0 (efivarfs, UEFI 3.3)."""
    if len(variable) == 5 and variable[4] in (0, 1):
        return variable[4] == 1
    return Unknown(Reason.MALFORMED, SECURE_BOOT, f"{len(variable)} bytes instead of 5, or neither 0 nor 1")


def parse_config(config: bytes, option: str) -> Maybe[bool]:
    """Return whether a boolean option is set in a kernel's config file.

    An option without a prompt, such as DMA_SHARED_BUFFER, has no line if it is disabled.
    """
    lines = b"\n" + config
    if b"\nCONFIG_" not in lines:
        return Unknown(Reason.MALFORMED, "kernel config", "not a kernel config")
    return b"\n" + option.encode() + b"=y" in lines


def unpack(packed: bytes, limit: int = CONFIG_LIMIT_BYTES) -> bytes:
    """Return a gzip file's content; empty if it is damaged, truncated or longer than `limit`."""
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(packed, limit)
    except zlib.error:
        return b""
    return content if stream.eof else b""


def _switch(host: Host, path: str) -> Maybe[bool]:
    return map_known(host.read(path), lambda text: parse_switch(text, path))


def all_set(config: Maybe[bytes], *options: str) -> Maybe[bool]:
    """Return whether all these options are set; the first that is not decides."""
    if isinstance(config, Unknown):
        return config
    answers = [parse_config(config, option) for option in options]
    return next((answer for answer in answers if isinstance(answer, Unknown) or not answer), True)


def read_config(host: Host, release: str) -> Maybe[bytes]:
    """Read the config file of a kernel on disk."""
    paths = (f"/boot/config-{release}", f"/lib/modules/{release}/config")
    return first_known((host.read_bytes(path, CONFIG_LIMIT_BYTES) for path in paths), paths[0])


def _config(host: Host, release: Maybe[str]) -> Maybe[bytes]:
    file = _NOT_FOUND if isinstance(release, Unknown) else read_config(host, release)
    if not isinstance(file, Unknown):
        return file
    packed = map_known(host.read_bytes("/proc/config.gz", CONFIG_LIMIT_BYTES), unpack)
    if isinstance(packed, Unknown):
        return _NOT_FOUND if file.reason is Reason.NOT_THERE else file
    return packed
