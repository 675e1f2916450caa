"""Trees that an admin may pass to `--root`: a dump, a container's mount, or a trap."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.base.origin import Source
from probes.base.unknown import Reason, Unknown
from probes.host.machine.local import NVIDIA_DRIVER, GpuLibraries, LocalHost


def reason(answer: object) -> Reason:
    assert isinstance(answer, Unknown)
    return answer.reason


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "node"
    (root / "sys/devices/a").mkdir(parents=True)
    (root / "sys/devices/a/vendor").write_text("0x10de\n")
    (tmp_path / "secret").write_text("outside")
    return root


def test_a_nul_at_the_end_of_an_attribute_is_removed(tmp_path: Path) -> None:
    """As Linux 5.15-rc ended cpulist."""
    (tmp_path / "cpulist").write_bytes(b"0-1\n\0")
    assert LocalHost(str(tmp_path)).read("/cpulist") == "0-1"


def test_reads_below_the_root(tree: Path) -> None:
    host = LocalHost(str(tree))
    assert host.origin.source is Source.TREE
    assert host.read("/sys/devices/a/vendor") == "0x10de"
    assert host.names("/sys/devices") == ("a",)
    assert host.size("/sys/devices/a/vendor") == 7


def test_links_are_followed_inside_the_root(tree: Path) -> None:
    (tree / "sys/class").mkdir()
    (tree / "sys/class/relative").symlink_to("../devices/a")
    (tree / "sys/class/absolute").symlink_to("/sys/devices/a")
    host = LocalHost(str(tree))
    for name in ("relative", "absolute"):
        assert host.read(f"/sys/class/{name}/vendor") == "0x10de"
        assert host.resolve(f"/sys/class/{name}") == "/sys/devices/a"
    assert host.link("/sys/class/relative") == "../devices/a"


@pytest.mark.parametrize(
    "target", ["../../secret", "../../../../../../secret", "/../secret", "../node/../../secret"]
)
def test_no_link_leads_out_of_the_root(tree: Path, target: str) -> None:
    (tree / "sys/link").symlink_to(target)
    (tree / "sys/directory").symlink_to(os.path.dirname(target) or "/")
    host = LocalHost(str(tree))
    assert reason(host.read("/sys/link")) is Reason.NOT_THERE
    assert isinstance(host.read("/sys/directory/secret"), Unknown)
    assert isinstance(host.read("/../secret"), Unknown)


def test_a_loop_of_links_is_malformed(tree: Path) -> None:
    (tree / "sys/one").symlink_to("two")
    (tree / "sys/two").symlink_to("one")
    host = LocalHost(str(tree))
    assert reason(host.read("/sys/one")) is Reason.MALFORMED
    assert reason(host.names("/sys/one/below")) is Reason.MALFORMED


def test_a_fifo_does_not_hang(tree: Path) -> None:
    os.mkfifo(tree / "sys/fifo")
    assert reason(LocalHost(str(tree)).read("/sys/fifo")) is Reason.MALFORMED


def test_directories_and_files_are_told_apart(tree: Path) -> None:
    host = LocalHost(str(tree))
    assert reason(host.read("/sys/devices")) is Reason.MALFORMED
    assert reason(host.names("/sys/devices/a/vendor")) is Reason.NOT_THERE
    assert reason(host.link("/sys/devices/a/vendor")) is Reason.MALFORMED


def test_a_huge_file_is_refused(tree: Path) -> None:
    with (tree / "sys/huge").open("wb") as file:
        file.truncate(100 << 20)
    assert isinstance(LocalHost(str(tree)).read("/sys/huge"), Unknown)


def test_garbage_is_text_without_control_characters(tree: Path) -> None:
    (tree / "sys/garbage").write_bytes(b"\x1b[2J\x1b]0;title\x07ok\xff\xfe\x00\x9b31m")
    text = LocalHost(str(tree)).read("/sys/garbage")
    assert isinstance(text, str)
    assert "ok" in text
    assert all(character.isprintable() for character in text)


def test_a_nul_in_a_path_is_refused(tree: Path) -> None:
    assert isinstance(LocalHost(str(tree)).read("/sys/a\0b"), Unknown)


def test_a_device_that_comes_back_elsewhere_is_found(tree: Path) -> None:
    host = LocalHost(str(tree))
    (tree / "sys/devices/b").mkdir()
    link = tree / "sys/current"
    link.symlink_to("devices/a")
    assert host.read("/sys/current/vendor") == "0x10de"
    link.unlink()
    link.symlink_to("devices/b")
    (tree / "sys/devices/a/vendor").unlink()
    (tree / "sys/devices/b/vendor").write_text("0x15b3")
    assert host.read("/sys/current/vendor") == "0x15b3"


def test_unreadable_files_need_root(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LocalHost(str(tree))
    monkeypatch.setattr(host, "_is_root", False)

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(host, "_read", refuse)
    assert reason(host.read("/sys/kernel/debug/x")) is Reason.NEEDS_ROOT


def test_a_tree_has_no_commands_and_no_driver(tree: Path) -> None:
    host = LocalHost(str(tree))
    dmabuf = host.dmabuf_errnos(["mlx5_0"])["mlx5_0"]
    for answer in (host.run(["uname"]), host.nvml(), host.nvml_live(), host.cuda_gpus(), dmabuf):
        assert reason(answer) is Reason.NOT_THERE
    assert isinstance(host.environment("PATH"), Unknown)


def test_this_machine_can_be_read() -> None:
    host = LocalHost()
    assert host.origin.source is Source.LIVE
    assert isinstance(host.read("/proc/sys/kernel/osrelease"), str)
    assert reason(host.read("/no/such/file")) is Reason.NOT_THERE


def test_reading_does_not_load_the_nvidia_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # nvmlInit has a setuid helper load the module (nvidia-modprobe(1)).
    asked: list[str] = []

    class Library:
        def facts(self) -> None:
            asked.append("facts")

        def live(self) -> None:
            asked.append("live")

    loaded = tmp_path / "nvidia"
    monkeypatch.setattr("probes.host.machine.local.DRIVER_LOADED", (str(loaded),))
    monkeypatch.setattr("probes.host.machine.local.NvmlLibrary", Library)
    host = LocalHost()
    assert reason(host.nvml()) is Reason.NOT_THERE
    assert reason(host.nvml_live()) is Reason.NOT_THERE
    assert asked == []
    loaded.mkdir()
    host.nvml()
    host.nvml_live()
    assert asked == ["facts", "live"]


def test_libcuda_is_not_asked_if_that_would_load_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # cuInit loads nvidia_uvm and makes device files by the same helper.
    here, gone = tmp_path / "nvidiactl", tmp_path / "nvidia-uvm"
    here.write_text("")
    monkeypatch.setattr("probes.host.machine.library_probes.CUDA_NEEDS", (str(here), str(gone)))
    monkeypatch.setattr("probes.host.machine.library_probes.probe_cuda", lambda: ())
    answer = LocalHost().cuda_gpus()
    assert reason(answer) is Reason.NOT_THERE
    gone.write_text("")
    assert LocalHost().cuda_gpus() == ()


# A sleeping GPU is not woken by NVML or libcuda


BDF = "0000:1b:00.0"


def gpu(root: Path, control: str, status: str) -> Path:
    power = root / NVIDIA_DRIVER.lstrip("/") / BDF / "power"
    power.mkdir(parents=True)
    (power / "control").write_text(f"{control}\n")
    (power / "runtime_status").write_text(f"{status}\n")
    return power


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_sleeping_gpu_keeps_nvml_from_being_asked(tmp_path: Path, status: str) -> None:
    gpu(tmp_path, "auto", status)
    why = GpuLibraries(LocalHost(str(tmp_path))).why_not_asked("NVML")
    assert isinstance(why, Unknown)
    assert f"{BDF} is asleep and NVML would wake it up" in str(why)


def test_it_is_asked_again_as_soon_as_the_gpu_is_awake(tmp_path: Path) -> None:
    power = gpu(tmp_path, "auto", "suspended")
    gpus = GpuLibraries(LocalHost(str(tmp_path)), clock=lambda: 1.0)
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

    gpus = GpuLibraries(Noting(), clock=lambda: now[0])  # type: ignore[arg-type]
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
    monkeypatch.setattr("probes.host.machine.local.GpuLibraries.why_not_asked", lambda *_: why)
    monkeypatch.setattr("probes.host.machine.local.DRIVER_LOADED", (str(tmp_path),))
    monkeypatch.setattr("probes.host.machine.library_probes.CUDA_NEEDS", (str(tmp_path),))
    monkeypatch.setattr("probes.host.machine.library_probes.probe_cuda", asked)
    for question in ("facts", "live"):
        monkeypatch.setattr(f"probes.host.machine.local.NvmlLibrary.{question}", asked)
    host = LocalHost()
    assert host.nvml() is why
    assert host.nvml_live() is why
    assert host.cuda_gpus() is why
