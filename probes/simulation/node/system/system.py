"""The operating system of a simulated node: os-release, boot loader, kernels on disk, cloud, Slurm.

After a reboot, what is on disk stays, and everything else starts as the boot configuration says.
"""

from __future__ import annotations

import re
from dataclasses import replace

from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Removed, Tree
from probes.simulation.node.system.services import UNITS, WANTS

GRUB_CONFIG = "/boot/grub/grub.cfg"
_MACHINE_ID = "51a01a7ed00000000000000000000001"
_ON_DISK = ("/boot", "/etc", "/home", "/lib", "/opt", "/root", "/usr", "/var")
_GRUB = re.compile(r'^GRUB_CMDLINE_LINUX(?:_DEFAULT)?="((?:[^"\\\n]|\\.)*)"', re.M)
_ENTRY = re.compile(r"^options .* ro (.*)$", re.M)
_JOB = re.compile(r"/slurm/uid_([0-9]+)/job_([0-9]+)/")
PASSTHROUGH = {"iommu=pt", "iommu.passthrough=1"}
_SLURM_CONF = """\
ClusterName=simulated
SlurmctldHost=login0
ProctrackType=proctrack/cgroup
PropagateResourceLimitsExcept=MEMLOCK
Prolog=/etc/slurm/prolog.sh
HealthCheckProgram=/usr/sbin/nhc
"""
_SLURM_UNIT = """\
[Unit]
Description=slurmd (simulated)
[Service]
ExecStart=/usr/sbin/slurmd -D -s
LimitMEMLOCK=infinity
LimitNOFILE=131072
"""


def add_system(tree: Tree) -> None:
    """Add os-release, DMI's asset tag, the boot loader's files and the kernels on disk."""
    node = tree.description
    system = node.system
    like = f'ID_LIKE="{system.like}"\n' if system.like else ""
    names = f'PRETTY_NAME="{node.distribution}"\nID={system.id}\n{like}VERSION_ID="{system.version}"\n'
    tree.add("/etc/os-release", names)
    tree.add("/sys/class/dmi/id/chassis_asset_tag", f"{system.asset_tag or 'Default string'}\n")
    tree.directory("/sys/firmware")
    if system.efi:
        tree.directory("/sys/firmware/efi")
    _BOOT[system.boot](tree)
    ram_disk = "initramfs-{}.img" if system.boot == "grub-bls" else "initrd.img-{}"
    for release in filter(None, (node.kernel, system.older_kernel)):
        tree.add(f"/boot/vmlinuz-{release}", "")
        tree.add(f"/boot/{ram_disk.format(release)}", "")
    if system.older_kernel:
        tree.add(f"/lib/modules/{system.older_kernel}/modules.dep", "")
        tree.directory(f"/lib/modules/{system.older_kernel}/build")


def _options(node: NodeDescription) -> str:
    """Return the admin's words of the command line: those after "ro"."""
    return node.cmdline.partition(" ro ")[2]


def _grub(tree: Tree) -> None:
    options = _options(tree.description)
    tree.add("/etc/default/grub", f'GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="{options}"\n')
    write_grub_config(tree)
    tree.add("/boot/grub/grubenv", _grubenv(""))
    if tree.description.system.id in ("ubuntu", "debian"):
        tree.add("/usr/sbin/update-initramfs", "#!/bin/sh\n")
        tree.add("/usr/sbin/update-grub", "#!/bin/sh\n")
        tree.add("/var/lib/shim-signed/mok/MOK.der", "")
    else:
        tree.add("/usr/bin/dracut", "#!/bin/sh\n")


def write_grub_config(tree: Tree) -> None:
    """Write what update-grub writes: an entry for each kernel, with the command line of this boot."""
    node = tree.description
    root = next((word for word in node.cmdline.split() if word.startswith("root=")), "root=/dev/md0")
    entries = (
        f"menuentry '{node.distribution}, with Linux {release}' {{\n"
        f"\tlinux\t/boot/vmlinuz-{release} {root} ro {_options(node)}\n"
        f"\tinitrd\t/boot/initrd.img-{release}\n}}\n"
        for release in filter(None, (node.kernel, node.system.older_kernel))
    )
    tree.add(GRUB_CONFIG, "".join(entries))


def _grub_bls(tree: Tree) -> None:
    node = tree.description
    entry = f"{_MACHINE_ID}-{node.kernel}"
    tree.add(
        "/etc/default/grub",
        f'GRUB_DEFAULT=saved\nGRUB_CMDLINE_LINUX="{_options(node)}"\nGRUB_ENABLE_BLSCFG=true\n',
    )
    tree.add(f"/boot/loader/entries/{entry}.conf", _entry(node))
    tree.add("/boot/grub2/grub.cfg", "# simulated\n")
    tree.add("/boot/grub2/grubenv", _grubenv(entry))
    tree.add("/usr/bin/dracut", "#!/bin/sh\n")
    tree.add("/usr/sbin/grubby", "#!/bin/sh\n")


def _systemd_boot(tree: Tree) -> None:
    node = tree.description
    entry = f"{_MACHINE_ID}-{node.kernel}.conf"
    tree.add(f"/boot/loader/entries/{entry}", _entry(node))
    tree.add("/boot/loader/loader.conf", f"timeout 5\ndefault {_MACHINE_ID}-*\n")
    tree.add("/etc/kernel/cmdline", f"{_options(node)}\n")
    tree.add("/usr/bin/dracut", "#!/bin/sh\n")


_BOOT = {"grub": _grub, "grub-bls": _grub_bls, "systemd-boot": _systemd_boot}


def _entry(node: NodeDescription) -> str:
    return (
        f"title {node.distribution}\nversion {node.kernel}\nlinux /vmlinuz-{node.kernel}\n"
        f"initrd /initramfs-{node.kernel}.img\noptions root=/dev/md0 ro {_options(node)}\n"
    )


def _grubenv(entry: str) -> str:
    """Return a GRUB environment block of 1024 bytes."""
    text = "# GRUB Environment Block\n" + (f"saved_entry={entry}\n" if entry else "")
    return text.ljust(1024, "#")


def add_slurm(tree: Tree) -> None:
    """Add slurmd and its configuration, if the node has Slurm."""
    path = tree.description.system.slurm
    if not path:
        return
    tree.add(path, _SLURM_CONF)
    tree.add("/usr/sbin/slurmd", b"\x7fELF")
    tree.add(f"{UNITS}/slurmd.service", _SLURM_UNIT)
    tree.link(f"{WANTS}/slurmd.service", f"{UNITS}/slurmd.service")
    tree.units["slurmd"] = "active"
    tree.commands["sinfo"] = lambda argv, seconds: _sinfo(tree, argv)
    tree.commands["squeue"] = lambda argv, seconds: _squeue(tree, argv)


def _sinfo(tree: Tree, argv: tuple[str, ...]) -> str:
    """Return state and reason of this node; nothing for any other node or format."""
    if argv[1:] != ("--noheader", "--nodes", tree.description.hostname, "--format", "%T|%E"):
        return ""
    state = "draining" if tree.programs else "drained"
    return "mixed|none\n" if tree.drained_for is None else f"{state}|{tree.drained_for or 'none'}\n"


def _squeue(tree: Tree, argv: tuple[str, ...]) -> str:
    """Return the jobs of this node; nothing for any other node or format."""
    if argv[1:] != ("--noheader", "--nodes", tree.description.hostname, "--format", "%i|%u|%T|%L"):
        return ""
    groups = (tree.text(f"/proc/{program.pid}/cgroup") for program in tree.programs)
    rows = (row.split(":") for row in tree.text("/etc/passwd").splitlines())
    users = {row[2]: row[0] for row in rows}
    jobs = {job: users.get(uid, uid) for group in groups for uid, job in _JOB.findall(group)}
    return "".join(f"{job}|{user}|RUNNING|1:20:00\n" for job, user in sorted(jobs.items()))


def description_after(tree: Tree) -> NodeDescription:
    """Return the description with the kernel command line that the boot loader's files have now.

    As if the boot loader's configuration had been written after the last edit.
    """
    node = tree.description
    options = _options_on_disk(tree)
    if options is None:
        return node
    head = node.cmdline.partition(" ro ")[0]
    passes = bool(PASSTHROUGH & set(options.split()))
    iommu = "identity" if passes and node.iommu else node.iommu
    return replace(node, cmdline=f"{head} ro {options}".strip(), iommu=iommu)


def _options_on_disk(tree: Tree) -> str | None:
    """Return the options of the boot entry, else those of /etc/default/grub; None: neither has any."""
    entries = sorted(path for path in tree.files if path.startswith("/boot/loader/entries/"))
    for path in entries:
        match = _ENTRY.search(tree.text(path))
        if match is not None:
            return match[1]
    below = sorted(path for path in tree.files if path.startswith("/etc/default/grub.d/"))
    found: str | None = None
    for path in ("/etc/default/grub", *below):
        for match in _GRUB.finditer(tree.text(path)):
            value = match[1].replace('\\"', "")  # the shell of grub.cfg takes the quotes away
            found = value.replace("$GRUB_CMDLINE_LINUX", found or "").strip()
    return found


def keep_disk(tree: Tree, earlier: Tree) -> None:
    """Replace what is on the disk of a new tree by what was on the earlier one's."""
    for top in _ON_DISK:
        if tree.is_there(top):
            tree.remove(top)
    files = {path: content for path, content in earlier.files.items() if _is_on_disk(path)}
    links = {path: target for path, target in earlier.links.items() if _is_on_disk(path)}
    tree.restore(Removed(files, links, frozenset(filter(_is_on_disk, earlier.directories))))
    if earlier.is_there(GRUB_CONFIG):
        write_grub_config(tree)
    # Answers about files on disk, and what firmware and shim remember.
    for name in ("modinfo", "modprobe"):
        tree.commands[name] = earlier.commands[name]
    tree.refusals = earlier.refusals
    tree.not_installed = earlier.not_installed


def _is_on_disk(path: str) -> bool:
    return path.startswith(tuple(f"{top}/" for top in _ON_DISK)) or path in _ON_DISK
