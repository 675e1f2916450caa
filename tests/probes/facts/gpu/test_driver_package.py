"""Where the NVIDIA driver on a node is from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage, DriverTraces, probe
from probes.facts.kernel.module_files import DkmsFacts, DkmsModule, ModuleFile, parse_modinfo
from probes.facts.system.kubernetes import DriverContainerFacts
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from tests.support.trees import link, write

RELEASE = "6.8.0-60-generic"
ABSENT = Unknown(Reason.NOT_THERE)
DKMS = DkmsFacts((DkmsModule("nvidia", "580.95.05", (RELEASE,), (RELEASE,), None),))
SMI = "/usr/bin/nvidia-smi"


def module(path: str = "updates/dkms/nvidia.ko.zst", terms: str = "Dual MIT/GPL") -> dict[str, ModuleFile]:
    text = f"filename: /lib/modules/{RELEASE}/{path}\nversion: 580.95.05\nlicense: {terms}\nname: nvidia\n"
    return parse_modinfo(text)


def container(driver: bool) -> DriverContainerFacts:
    return DriverContainerFacts(driver, ABSENT, False, False, ())


def traces(
    files: Maybe[dict[str, ModuleFile]], dkms: Maybe[DkmsFacts] = ABSENT, in_container: bool = False
) -> DriverTraces:
    return DriverTraces(RELEASE, ABSENT, files, dkms, container(in_container))


class Dpkg(LocalHost):
    """A node whose dpkg knows some files."""

    def __init__(self, root: Path, **owners: str) -> None:
        super().__init__(str(root))
        self.owners = owners

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        if argv[0] != "dpkg-query":
            return Unknown(Reason.NOT_THERE, argv[0], "not installed")
        lines = [f"{name}: {path}" for path in argv[2:] for part, name in self.owners.items() if part in path]
        shown = [f"{name} 1.0" for name in self.owners.values()]
        return CommandOutput(tuple(argv), 0, "\n".join(shown if "--show" in argv else lines), "")


def driver(host: LocalHost, known: DriverTraces) -> DriverPackage:
    found = probe(host, known)
    assert isinstance(found, DriverPackage)
    return found


def test_a_package_that_dkms_builds(tmp_path: Path) -> None:
    write(tmp_path, SMI, "")
    found = driver(Dpkg(tmp_path, smi="nvidia-utils-580"), traces(module(), DKMS))
    assert found == DriverPackage(
        "580.95.05", True, DriverOrigin.PACKAGE, "nvidia-utils-580", by_dkms=True, prebuilt=False
    )


def test_modules_that_the_distributor_compiled(tmp_path: Path) -> None:
    """Their nvidia_peermem knows the distributor's ib_core only, never a locally built OFED."""
    path = "kernel/nvidia-580-open/nvidia.ko"
    found = driver(Dpkg(tmp_path, modules="linux-modules-nvidia-580"), traces(module(path)))
    assert (found.by_dkms, found.prebuilt, found.package) == (False, True, "linux-modules-nvidia-580")


def test_a_program_that_is_debians_alternative_belongs_to_its_package(tmp_path: Path) -> None:
    write(tmp_path, "/usr/lib/nvidia/current/nvidia-smi", "")
    link(tmp_path, SMI, "/etc/alternatives/nvidia--nvidia-smi")
    link(tmp_path, "/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    found = driver(Dpkg(tmp_path, **{"/nvidia/current/": "nvidia-smi"}), traces(module(), DKMS))
    assert (found.origin, found.package) == (DriverOrigin.PACKAGE, "nvidia-smi")


def test_the_run_installer(tmp_path: Path) -> None:
    write(tmp_path, SMI, "")
    write(tmp_path, "/usr/bin/nvidia-uninstall", "")
    found = driver(Dpkg(tmp_path), traces(module(terms="NVIDIA"), DKMS))
    assert (found.origin, found.is_open, found.prebuilt) == (DriverOrigin.RUN_FILE, False, False)
    assert isinstance(found.package, Unknown)
    assert found.package.reason is Reason.NOT_THERE


def test_a_driver_container(tmp_path: Path) -> None:
    found = driver(Dpkg(tmp_path), traces({}, in_container=True))
    assert found.origin is DriverOrigin.CONTAINER
    assert isinstance(found.version, Unknown)


def test_no_driver_at_all(tmp_path: Path) -> None:
    found = probe(Dpkg(tmp_path), traces({}))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_a_driver_for_another_kernel_only_is_installed(tmp_path: Path) -> None:
    write(tmp_path, SMI, "")
    found = driver(Dpkg(tmp_path, smi="nvidia-utils-580"), traces({}, DkmsFacts(())))
    assert isinstance(found.version, Unknown)
    assert found.origin is DriverOrigin.PACKAGE


@pytest.mark.parametrize("reason", [Reason.TIMED_OUT, Reason.NEEDS_ROOT])
def test_an_unread_modinfo_is_no_missing_driver(tmp_path: Path, reason: Reason) -> None:
    found = probe(Dpkg(tmp_path), traces(Unknown(reason, "modinfo")))
    assert isinstance(found, Unknown)
    assert found.reason is reason
