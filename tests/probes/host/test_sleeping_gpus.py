"""A sleeping GPU is not woken by NVML or libcuda."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.local import LocalHost
from probes.host.sleeping_gpus import DRIVER, SleepingGpus

BDF = "0000:1b:00.0"


def gpu(root: Path, control: str, status: str) -> Path:
    power = root / DRIVER.lstrip("/") / BDF / "power"
    power.mkdir(parents=True)
    (power / "control").write_text(f"{control}\n")
    (power / "runtime_status").write_text(f"{status}\n")
    return power


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_sleeping_gpu_keeps_nvml_from_being_asked(tmp_path: Path, status: str) -> None:
    gpu(tmp_path, "auto", status)
    why = SleepingGpus(LocalHost(str(tmp_path))).why_not_asked("NVML")
    assert isinstance(why, Unknown)
    assert f"{BDF} sleeps and NVML would wake it up" in str(why)


def test_it_is_asked_again_as_soon_as_the_gpu_is_awake(tmp_path: Path) -> None:
    power = gpu(tmp_path, "auto", "suspended")
    gpus = SleepingGpus(LocalHost(str(tmp_path)), clock=lambda: 1.0)
    assert isinstance(gpus.why_not_asked("NVML"), Unknown)
    (power / "runtime_status").write_text("active\n")
    assert gpus.why_not_asked("NVML") is None


def test_gpus_that_never_sleep_cost_one_list_in_ten_seconds(tmp_path: Path) -> None:
    gpu(tmp_path, "on", "active")
    host, asked, now = LocalHost(str(tmp_path)), list[str](), [0.0]

    class Noting:
        def read(self, path: str, limit: int = 4096) -> object:
            asked.append(path)
            return host.read(path, limit)

        def names(self, path: str) -> object:
            asked.append(path)
            return host.names(path)

    gpus = SleepingGpus(Noting(), clock=lambda: now[0])  # type: ignore[arg-type]
    for second in range(10):
        now[0] = second
        assert gpus.why_not_asked("NVML") is None
    assert len(asked) == 2
    now[0] = 10.0
    gpus.why_not_asked("NVML")
    assert len(asked) == 4


def test_neither_nvml_nor_libcuda_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("a sleeping GPU was woken")

    why = Unknown(Reason.NOT_THERE, "GPU", "it sleeps")
    monkeypatch.setattr("probes.host.local.SleepingGpus.why_not_asked", lambda *_: why)
    monkeypatch.setattr("probes.host.local.DRIVER_LOADED", (str(tmp_path),))
    monkeypatch.setattr("probes.host.local.NEEDED", (str(tmp_path),))
    monkeypatch.setattr("probes.host.local.probe_cuda", asked)
    for question in ("facts", "live"):
        monkeypatch.setattr(f"probes.host.local.NvmlLibrary.{question}", asked)
    host = LocalHost()
    assert host.nvml() is why
    assert host.nvml_live() is why
    assert host.cuda_gpus() is why
