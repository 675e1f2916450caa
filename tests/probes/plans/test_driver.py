"""What DKMS rebuilds: the NVIDIA driver, and no other package whose name begins alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.facts.kernel.module_files import DkmsFacts, DkmsModule
from probes.plans.driver import rebuild_plan, rebuild_steps
from tests.support.changed_facts import with_module
from tests.support.doctor import examination_of

RELEASE = "6.8.0-60-generic"


def package(name: str, version: str) -> DkmsModule:
    return DkmsModule(name, version, (RELEASE,), (RELEASE,), None)


@pytest.mark.parametrize("driver", ["nvidia", "nvidia-open", "nvidia-srv", "nvidia-current"])
def test_the_driver_is_rebuilt_and_not_nvidia_fs(driver: str) -> None:
    packages = (package("nvidia-fs", "2.25.7"), package(driver, "570.124.06"))
    node = replace(examination_of("hgx-h100"), dkms=DkmsFacts(packages))
    build = rebuild_steps(node)[0]
    assert build.argv[:3] == ("dkms", "build", f"{driver}/570.124.06")


def test_without_a_dkms_package_the_rebuild_is_manual() -> None:
    node = replace(examination_of("hgx-h100"), dkms=DkmsFacts((package("nvidia-fs", "2.25.7"),)))
    assert rebuild_steps(node)[0].is_instruction


def test_bad_files_of_an_installed_driver_are_installed_again() -> None:
    """With dkms 3.0.10, autoinstall leaves a module that it has installed as it is, damaged or deleted."""
    packages = (package("gdrdrv", "2.5"), package("nvidia-current-open", "535.261.03"))
    node = replace(examination_of("hgx-h100"), dkms=DkmsFacts(packages))

    def commands(release: str, has_bad_files: bool) -> list[str]:
        return [" ".join(step.argv[:3]) for step in rebuild_plan(node, release, has_bad_files).steps]

    assert "dkms install nvidia-current-open/535.261.03" in commands(RELEASE, True)
    assert "dkms autoinstall -k" in commands(RELEASE, False)
    assert "dkms autoinstall -k" in commands("6.8.0-99-generic", True)


def test_of_two_drivers_the_one_that_modprobe_loads_is_rebuilt() -> None:
    """Debian's DKMS packages of the open and of the proprietary modules can be installed at once."""
    packages = (package("nvidia-current", "535.261.03"), package("nvidia-current-open", "535.261.03"))
    node = with_module(
        replace(examination_of("hgx-h100"), dkms=DkmsFacts(packages)),
        "nvidia",
        on_disk=f"/lib/modules/{RELEASE}/updates/dkms/nvidia-current-open.ko",
    )
    assert rebuild_steps(node)[0].argv[:3] == ("dkms", "build", "nvidia-current-open/535.261.03")
