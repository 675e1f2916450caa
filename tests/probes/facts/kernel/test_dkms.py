"""What DKMS has built, and for which kernels."""

from __future__ import annotations

from pathlib import Path

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.module_files import DkmsFacts, DkmsModule, probe_dkms
from probes.host.machine.local import LocalHost
from tests.support.trees import link, write

OLD, NEW = "6.8.0-40-generic", "6.8.0-45-generic"
BASE = "/var/lib/dkms/nvidia"


def modules(root: Path) -> tuple[DkmsModule, ...]:
    facts = probe_dkms(LocalHost(str(root)))
    assert isinstance(facts, DkmsFacts)
    return facts.modules


def test_a_module_built_for_the_old_kernel_only(tmp_path: Path) -> None:
    write(tmp_path, f"{BASE}/570.124.06/{OLD}/x86_64/module/nvidia-peermem.ko.zst", "")
    write(tmp_path, f"{BASE}/570.124.06/{OLD}/x86_64/log/make.log", "")
    link(tmp_path, f"{BASE}/570.124.06/source", "/usr/src/nvidia-570.124.06")
    link(tmp_path, f"{BASE}/kernel-{OLD}-x86_64", f"570.124.06/{OLD}/x86_64")
    write(tmp_path, "/var/lib/dkms/mok.pub", "")
    assert modules(tmp_path) == (DkmsModule("nvidia", "570.124.06", (OLD,), (OLD,), None),)


def test_a_build_that_failed_leaves_its_log(tmp_path: Path) -> None:
    write(tmp_path, f"{BASE}/570.124.06/build/make.log", "error\n")
    link(tmp_path, f"{BASE}/570.124.06/source", "/usr/src/nvidia-570.124.06")
    log = f"{BASE}/570.124.06/build/make.log"
    assert modules(tmp_path) == (DkmsModule("nvidia", "570.124.06", (), (), log),)


def test_built_is_not_installed(tmp_path: Path) -> None:
    write(tmp_path, f"{BASE}/570.124.06/{NEW}/x86_64/module/nvidia.ko", "")
    assert modules(tmp_path) == (DkmsModule("nvidia", "570.124.06", (NEW,), (), None),)


def test_a_node_without_dkms_says_so(tmp_path: Path) -> None:
    answer = probe_dkms(LocalHost(str(tmp_path)))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


def test_names_and_links_of_any_kind_are_read(tmp_path: Path) -> None:
    link(tmp_path, f"{BASE}/kernel-\x1b[31m-x86_64", "/")
    write(tmp_path, f"{BASE}/\x1b[2J/{NEW}/x86_64/module/nvidia.ko", "")
    assert all(module.version.isprintable() for module in modules(tmp_path))
