"""Processes that use GPUs and RDMA, their settings, and those that only root can read."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.nccl_conf import NcclConf
from probes.facts.jobs.process_files import (
    parse_environment,
    parse_job,
    parse_maps,
    parse_program,
    parse_status,
)
from probes.facts.jobs.processes import Process, ProcessFacts, busy_cpus, name_of, names_of, probe
from probes.facts.system.limits import MemlockLimit
from probes.host.machine.local import LocalHost
from probes.host.usage import ProcessUsage, parse_stat
from probes.simulation.host import SimulatedHost
from tests.support.trees import link, write

STATUS = "Name:\tpython3\nState:\tS (sleeping)\nUid:\t1000\t1001\t1000\t1000\nCapEff:\t{}\n"
LIMITS = "Max locked memory         65536                unlimited            bytes     \n"
MAPS = (
    "7f0000000000-7f0000001000 r-xp 00000000 08:01 42   /usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5\n"
    "7f0000001000-7f0000002000 r--p 00000000 08:01 42   /usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5\n"
    "7f0000002000-7f0000003000 r-xp 00000000 08:01 43   /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so\n"
    "7f0000003000-7f0000004000 rw-s 00000000 00:05 99   /dev/nvidiactl\n"
    "7f0000004000-7f0000005000 r-xp 00000000 08:01 44   /usr/lib/libc.so.6\n"
)


class Guarded(LocalHost):
    """A tree that denies access to some paths."""

    refused: tuple[str, ...] = ()

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        if path.startswith(self.refused) if self.refused else False:
            return Unknown(Reason.NEEDS_ROOT, path)
        return super().names(path)

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        if path.startswith(self.refused) and path.endswith(("environ", "maps")) if self.refused else False:
            return Unknown(Reason.NEEDS_ROOT, path)
        return super().read_bytes(path, limit)


def add_process(
    root: Path,
    pid: int,
    comm: str = "python3",
    files: tuple[str, ...] = (),
    environ: str = "",
    maps: str = "",
    capabilities: str = "0000000000000000",
) -> None:
    base = f"/proc/{pid}"
    for name, text in (
        ("comm", f"{comm}\n"),
        ("cmdline", f"{comm}\0train.py\0"),
        ("status", STATUS.format(capabilities)),
        ("limits", LIMITS),
        ("environ", environ),
        ("maps", maps),
        ("fd/.keep", ""),
    ):
        write(root, f"{base}/{name}", text)
    for number, file in enumerate(files):
        link(root, f"{base}/fd/{number}", file)


def found(answer: Maybe[ProcessFacts]) -> ProcessFacts:
    assert isinstance(answer, ProcessFacts)
    return answer


def only(root: Path) -> Process:
    processes = found(probe(LocalHost(str(root)))).processes
    assert len(processes) == 1
    return processes[0]


JOB = ("/dev/null", "socket:[1]", "/dev/nvidiactl", "/dev/nvidia0", "/dev/infiniband/uverbs3", "/dev/nvidia0")


def test_a_job_with_its_devices_limits_and_settings(tmp_path: Path) -> None:
    add_process(tmp_path, 1, "systemd", ("/dev/null",))
    environ = "PATH=/bin\0AWS_SECRET_ACCESS_KEY=x\0NCCL_IB_HCA=mlx5_0\0CUDA_VISIBLE_DEVICES=0\0UCX_TLS=rc\0"
    add_process(tmp_path, 4242, files=JOB, environ=environ, maps=MAPS)
    job = only(tmp_path)
    assert (job.pid, job.comm, job.uid, job.state) == (4242, "python3", 1001, "S")
    assert job.gpu_files == ("/dev/nvidia0", "/dev/nvidiactl")
    assert job.uverbs_files == ("/dev/infiniband/uverbs3",)
    assert job.memlock == MemlockLimit(65536, math.inf)
    assert job.ipc_lock is False
    assert job.environment == {"NCCL_IB_HCA": "mlx5_0", "CUDA_VISIBLE_DEVICES": "0", "UCX_TLS": "rc"}
    assert not isinstance(job.libraries, Unknown)
    assert (job.libraries[0].name, job.libraries[0].version) == ("libnccl", "2.21.5")
    assert job.libraries[1].name == "libnccl-net"
    assert isinstance(job.libraries[1].version, Unknown)


def test_cap_ipc_lock_lifts_the_limit(tmp_path: Path) -> None:
    add_process(tmp_path, 7, files=JOB, capabilities="0000000000004000")
    assert only(tmp_path).ipc_lock is True


def test_a_job_in_a_container_without_rdma_nodes(tmp_path: Path) -> None:
    add_process(tmp_path, 7, files=JOB)
    write(tmp_path, "/proc/7/root/dev/null", "")
    nodes = only(tmp_path).rdma_nodes
    assert isinstance(nodes, Unknown)
    assert nodes.reason is Reason.NOT_THERE
    write(tmp_path, "/proc/7/root/dev/infiniband/uverbs3", "")
    assert only(tmp_path).rdma_nodes == ("uverbs3",)


def test_the_version_of_nccl_in_a_python_package(tmp_path: Path) -> None:
    site = "/opt/venv/lib/python3.12/site-packages"
    maps = f"7f0000000000-7f0000001000 r-xp 00000000 08:01 42   {site}/nvidia/nccl/lib/libnccl.so.2\n"
    add_process(tmp_path, 7, files=JOB, maps=maps)
    write(tmp_path, f"/proc/7/root{site}/nvidia_nccl_cu12-2.26.2.post1.dist-info/METADATA", "")
    write(tmp_path, f"/proc/7/root{site}/nvidia_nccl_cu12-2.26.2.dist-info/METADATA", "")
    libraries = only(tmp_path).libraries
    assert not isinstance(libraries, Unknown)
    assert libraries[0].version == "2.26.2"


def test_nccl_conf_of_node_and_container(tmp_path: Path) -> None:
    write(tmp_path, "/etc/nccl.conf", "# site\nNCCL_IB_TC=106\n")
    add_process(tmp_path, 7, files=JOB)
    write(tmp_path, "/proc/7/root/etc/nccl.conf", "NCCL_NET_GDR_LEVEL=PHB\n")
    facts = found(probe(LocalHost(str(tmp_path))))
    assert facts.nccl_conf == NcclConf({"NCCL_IB_TC": "106"}, ())
    assert facts.processes[0].nccl_conf == NcclConf({"NCCL_NET_GDR_LEVEL": "PHB"}, ())


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ("HOME=/home/alice\0", "/proc/7/root/home/alice/.nccl.conf"),
        ("HOME=/home/alice\0NCCL_CONF_FILE=/etc/site.conf\0", "/proc/7/root/etc/site.conf"),
        ("NCCL_CONF_FILE=job/nccl.conf\0", "/proc/7/cwd/job/nccl.conf"),
        ("HOME=/home/alice\0NCCL_CONF_FILE=/../../x\0", "/proc/7/root/x"),
        ("HOME=relative\0", ""),
        ("", ""),
    ],
)
def test_the_users_nccl_conf(tmp_path: Path, environ: str, path: str) -> None:
    add_process(tmp_path, 7, files=JOB, environ=environ)
    assert isinstance(only(tmp_path).user_conf, Unknown)
    assert only(tmp_path).user_conf_path == path
    if path:
        write(tmp_path, path, "NCCL_DEBUG=INFO\n")
        assert only(tmp_path).user_conf == NcclConf({"NCCL_DEBUG": "INFO"}, ())


def test_others_processes_are_counted_as_hidden_not_as_idle(tmp_path: Path) -> None:
    add_process(tmp_path, 1, "systemd")
    add_process(tmp_path, 7, files=JOB)
    add_process(tmp_path, 8, "kworker/0:1")
    write(tmp_path, "/proc/8/cmdline", "")
    host = Guarded(str(tmp_path))
    host.refused = ("/proc/7/", "/proc/8/")
    facts = found(probe(host))
    assert facts.processes == ()
    assert facts.hidden == 1


def test_a_pid_that_nvml_names_is_shown_though_its_files_are_refused(tmp_path: Path) -> None:
    add_process(tmp_path, 1, "systemd")
    add_process(tmp_path, 7, files=JOB)
    host = Guarded(str(tmp_path))
    host.refused = ("/proc/7/",)
    job = found(probe(host, also=[7, 9999])).processes[0]
    assert job.memlock == MemlockLimit(65536, math.inf)
    for fact in (job.gpu_files, job.uverbs_files, job.environment, job.libraries):
        assert isinstance(fact, Unknown)
        assert fact.reason is Reason.NEEDS_ROOT


def test_gdrtop_itself_is_not_among_the_users(tmp_path: Path) -> None:
    add_process(tmp_path, 1, "systemd")
    add_process(tmp_path, 7, "gdrtop", files=JOB)
    link(tmp_path, "/proc/self", "7")
    assert found(probe(LocalHost(str(tmp_path)))).processes == ()


def test_hidepid_makes_the_number_of_hidden_unknown(tmp_path: Path) -> None:
    add_process(tmp_path, 7, files=JOB)
    assert isinstance(found(probe(LocalHost(str(tmp_path)))).hidden, Unknown)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    answer = probe(LocalHost(str(tmp_path)))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


@pytest.mark.parametrize("name", ["SECRET", "MY_NCCL_X", "nccl_debug", "NCCL_\x1b[31m", "HOME"])
def test_nothing_else_of_the_environment_is_kept(name: str) -> None:
    assert parse_environment(f"{name}=1\0NCCL_DEBUG=INFO\0".encode()) == {"NCCL_DEBUG": "INFO"}


def test_values_are_printable_and_bounded() -> None:
    value = parse_environment(b"NCCL_DEBUG=\x1b[2J" + b"a" * 10_000)["NCCL_DEBUG"]
    assert value.isprintable()
    assert len(value) <= 1024


def test_the_names_of_32_nics_are_kept_whole() -> None:
    names = ",".join(f"rdmap{number}s0" for number in range(100, 132))
    assert parse_environment(f"NCCL_IB_HCA=={names}\0".encode()) == {"NCCL_IB_HCA": f"={names}"}


def test_a_library_replaced_on_disk_is_still_named() -> None:
    line = b"7f00-7f01 r-xp 00000000 08:01 42   /usr/lib/libnccl.so.2.18.3 (deleted)\n"
    assert parse_maps(line)[0].version == "2.18.3"


@given(st.binary())
def test_no_bytes_stop_the_parsers(content: bytes) -> None:
    for value in parse_environment(b"NCCL_X=" + content).values():
        assert value.isprintable()
    for library in parse_maps(b"0-1 r-xp 0 0:0 1 /x/" + content + b"/libnccl.so.2.1"):
        assert library.path.isprintable()
        assert len(library.bundled_by) <= 64
    parse_maps(content)


_SITE = "/opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("path", "package"),
    [
        (f"{_SITE}/nixl_cu12.libs/libmlx5-79ef1d27.so.1.24.48.0", "nixl_cu12"),
        (f"{_SITE}/.nixl_cu13.mesonpy.libs/plugins/libplugin_UCX.so", "nixl_cu13"),
        (f"{_SITE}/nixl_cu12.libs/ucx/libuct_ib.so.0.0.0", "nixl_cu12"),
        (f"{_SITE}/torch/lib/libcudart-9335f6a2.so.12", "torch"),
        # Others may load these.
        (f"{_SITE}/nvidia/nccl/lib/libnccl.so.2", ""),
        (f"{_SITE}/mooncake/engine.so", ""),
        ("/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.48.0", ""),
        ("/opt/libs/libmlx5.so.1.24.48.0", ""),
        ("/opt/image/libcudart-9335f6a2.so.12", ""),
    ],
)
def test_a_copy_that_a_python_package_brings_for_itself_names_it(path: str, package: str) -> None:
    (library,) = parse_maps(f"7f00-7f01 r-xp 00000000 08:01 42   {path}\n".encode())
    assert library.bundled_by == package


@given(st.text())
def test_no_text_stops_the_parser_of_status(text: str) -> None:
    parse_status(text)


def test_pinned_memory_that_is_not_listed_is_not_zero() -> None:
    status = parse_status("Name:\tpython3\nVmPin:\t   32768 kB\n")
    assert status.pinned_bytes == 32768 * 1024
    assert isinstance(parse_status("Name:\tVmPin:\t 1 kB\n").pinned_bytes, Unknown)


def test_state_parent_cpu_and_start_of_a_process() -> None:
    stat = parse_stat("42 (a) b (R 1) S 7 42 42 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 9 0 123456 1 2")
    assert not isinstance(stat, Unknown)
    assert (stat.state, stat.parent, stat.cpu_seconds, stat.started) == ("S", 7, 3.0, 123456)


@given(st.text())
def test_no_text_stops_the_parser_of_stat(text: str) -> None:
    parse_stat(text)
    parse_stat(f"1 (x) {text}")


def test_ranks_are_kept_of_the_environment() -> None:
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
    )
    environ = "".join(f"{name}=1\0" for name in names) + "MASTER_ADDR=10.0.0.1\0"
    assert parse_environment(environ.encode()) == dict.fromkeys(names, "1")


def test_descendants_of_gdrtop_are_marked_as_its_own(tmp_path: Path) -> None:
    link(tmp_path, "/proc/self", "100")
    for pid, parent in ((200, 100), (300, 200), (400, 1), (500, 499)):
        add_process(tmp_path, pid, files=("/dev/infiniband/uverbs0",) if pid > 200 else ())
        write(tmp_path, f"/proc/{pid}/status", STATUS.format("0") + f"PPid:\t{parent}\n")
    ours = {process.pid: process.is_ours for process in found(probe(LocalHost(str(tmp_path)))).processes}
    assert ours == {300: True, 400: False, 500: False}


def test_an_environment_under_a_title_is_that_of_the_launcher(tmp_path: Path) -> None:
    """setproctitle clears it: as if nothing were set, but that is not known."""
    add_process(tmp_path, 100, environ="UCX_TLS=tcp\0TOKEN=s3cret\0")
    for pid, parent in ((200, 100), (300, 200), (400, 1), (500, 400)):
        add_process(tmp_path, pid, files=("/dev/nvidia0",) * (pid in (300, 500)), environ="\0" * 64)
        write(tmp_path, f"/proc/{pid}/status", STATUS.format("0") + f"PPid:\t{parent}\n")
    worker, orphan = found(probe(LocalHost(str(tmp_path)))).processes
    assert (worker.pid, worker.environment, worker.environment_pid) == (300, {"UCX_TLS": "tcp"}, 100)
    assert isinstance(orphan.environment, Unknown)
    assert orphan.environment.reason is Reason.NOT_RECORDED
    write(tmp_path, "/proc/300/environ", "UCX_TLS=rc\0")
    own, _ = found(probe(LocalHost(str(tmp_path)))).processes
    assert (own.environment, own.environment_pid) == ({"UCX_TLS": "rc"}, 300)


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["/usr/bin/python3", "-u", "/home/alice/llm/train.py", "--token", "s3cret"], "train.py"),
        (["python3.11", "-X", "faulthandler", "-W", "ignore", "./train.py"], "train.py"),
        (["python", "-um", "torch.distributed.run", "train.py"], "torch.distributed.run"),
        (["python3", "-c", "print('s3cret')"], "python3"),
        (["python3"], "python3"),
        (["bash", "-c", "s3cret"], "bash"),
        (["/bin/bash", "/opt/jobs/run.sh", "s3cret"], "run.sh"),
        (["./all_reduce_perf", "-b", "8"], "all_reduce_perf"),
        (["postgres: alice s3cret idle"], "postgres:"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["VLLM::Worker_TP0"], "VLLM::Worker"),
        (["VLLM::Worker_DP1_PP0_TP12_EP3"], "VLLM::Worker"),
        (["sglang::scheduler_TP7"], "sglang::scheduler"),
        (["sglang::detokenizer_2"], "sglang::detokenizer_2"),
        (["worker_TP0"], "worker_TP0"),
    ],
)
def test_a_process_is_named_by_its_program_and_never_by_its_arguments(words: list[str], program: str) -> None:
    assert parse_program("".join(f"{word}\0" for word in words).encode()) == program


UID_ = "1b2c3d4e_5f60_4718_9a8b_0c1d2e3f4a5b"
ID = "3f4e5d6c7b8a" + "a" * 52
CONTAINER = "container 3f4e5d6c7b8a"
POD = "kubepods-burstable-pod1b2c3d4e_5f60_4718_9a8b_0c1d2e3f4a5b.slice"


@pytest.mark.parametrize(
    ("cgroup", "slurm", "job"),
    [
        ("4:memory:/slurm/uid_1000/job_4711/step_0/task_0\n0::/init.scope", "", "Slurm job 4711"),
        ("0::/system.slice/slurmstepd.scope/job_815/step_batch/user/task_0", "4711", "Slurm job 815"),
        ("0::/user.slice", "4711", "Slurm job 4711"),
        ("0::/user.slice", "4711; rm", ""),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/{POD}/cri-containerd-{'a' * 64}.scope",
            "",
            "pod 1b2c3d4e",
        ),
        (f"0::/kubepods/burstable/pod1b2c3d4e-5f60-4718-9a8b-0c1d2e3f4a5b/{'a' * 64}", "", "pod 1b2c3d4e"),
        (f"12:pids:/docker/{'3f4e5d6c7b8a' + 'a' * 52}", "", "container 3f4e5d6c7b8a"),
        (f"0::/system.slice/docker-{'3f4e5d6c7b8a' + 'a' * 52}.scope", "", "container 3f4e5d6c7b8a"),
        (
            f"0::/machine.slice/libpod-{'3f4e5d6c7b8a' + 'a' * 52}.scope/container",
            "",
            "container 3f4e5d6c7b8a",
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope", "", ""),
        # Slurm: v1 with cgroup/v1 below the node's name, v2 with several slurmd on a node.
        ("7:cpuset:/slurm_gpu07/uid_1000/job_42/step_extern/task_0", "", "Slurm job 42"),
        ("0::/system.slice/gpu07_slurmstepd.scope/job_42/step_0/user/task_3", "", "Slurm job 42"),
        # Kubernetes: CRI-O and cgroup v1, guaranteed class.
        (f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-{'b' * 64}.scope/container", "", "pod 1b2c3d4e"),
        (f"5:devices:/kubepods/pod{UID_.replace('_', '-')}/{'b' * 64}", "", "pod 1b2c3d4e"),
        # Podman of a user, containerd by nerdctl, CRI-O and containerd without a pod, Docker's own cgroup.
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "", CONTAINER),
        (f"0::/libpod_parent/libpod-{ID}", "", CONTAINER),
        (f"0::/system.slice/nerdctl-{ID}.scope", "", CONTAINER),
        (f"0::/system.slice:cri-containerd:{ID}", "", CONTAINER),
        (f"0::/default/{ID}", "", CONTAINER),
        (f"0::/machine.slice/crio-{ID}.scope", "", CONTAINER),
        (f"0::/docker/buildx/docker/{ID}", "", CONTAINER),
        (f"0::/../docker-{ID}.scope", "", CONTAINER),
        (f"0::/system.slice/containerd.service/{ID}", "", ""),
    ],
)
def test_the_job_of_a_process(cgroup: str, slurm: str, job: str) -> None:
    assert parse_job(cgroup, slurm) == job


def test_a_process_is_named_by_program_user_and_job(tmp_path: Path) -> None:
    write(
        tmp_path, "/etc/passwd", "root:x:0:0::/root:/bin/sh\nbad line\nalice:x:1001:100:Alice:/home/alice:\n"
    )
    for pid in (7, 8):
        add_process(tmp_path, pid, files=JOB, environ="SLURM_JOB_ID=4711\0")
    add_process(tmp_path, 9, files=JOB)
    first, second, third = found(probe(LocalHost(str(tmp_path)))).processes
    assert name_of(first) == "train.py (alice, Slurm job 4711, pid 7)"
    assert names_of((first, second, third)) == (
        "train.py (alice, Slurm job 4711, pids 7, 8), train.py (alice, pid 9)"
    )


def test_a_process_of_an_unknown_user_is_named_by_its_uid(tmp_path: Path) -> None:
    add_process(tmp_path, 7, files=JOB)
    write(tmp_path, "/proc/7/cmdline", "")
    assert name_of(only(tmp_path)) == "python3 (uid 1001, pid 7)"


def test_the_search_for_a_job_is_bounded() -> None:
    """A recording may contain any control group; searching it must not take minutes."""
    assert parse_job("0::/kubelet.slice/kubepods/burstable/pod1b2c3d4e-5f60") == "pod 1b2c3d4e"
    far = "x" * 4096
    assert parse_job(f"0::/kubepods{far}-pod1b2c3d4e\n0::/slurm{far}/job_4711") == ""


@given(st.binary())
def test_no_bytes_stop_the_naming_of_a_process(content: bytes) -> None:
    program = parse_program(content)
    assert isinstance(program, Unknown) or (program.isprintable() and len(program) <= 48)
    parse_job(content.decode("utf-8", "replace"), content.decode("utf-8", "replace"))


class EndsMeanwhile(LocalHost):
    """A tree in which process 41 ends after its open files were listed."""

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        return (
            Unknown(Reason.NOT_THERE, path)
            if path.startswith("/proc/41/")
            else super().read_bytes(path, limit)
        )


def test_a_process_that_ends_while_it_is_read_makes_nothing_unknown(tmp_path: Path) -> None:
    for pid in (1, 41, 42):
        add_process(tmp_path, pid, files=("/dev/nvidia0",) * (pid > 1))
    facts = probe(EndsMeanwhile(str(tmp_path)))
    assert not isinstance(facts, Unknown)
    assert [process.pid for process in facts.processes] == [42]


class UserLookupHangs(LocalHost):
    """A node whose directory service (LDAP) is down: looking up a user's name hangs."""

    gate = threading.Event()

    def process_usage(self, pids: Sequence[int]) -> dict[int, Maybe[ProcessUsage]]:
        self.gate.wait(60.0)
        return {}


def test_a_user_lookup_that_hangs_costs_only_the_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.facts.jobs.processes._USAGE_SECONDS", 0.05)
    add_process(tmp_path, 7, files=JOB)
    host = UserLookupHangs(str(tmp_path))
    job = found(probe(host)).processes[0]
    host.gate.set()
    assert isinstance(job.usage, Unknown)
    assert job.usage.reason is Reason.TIMED_OUT
    assert name_of(job) == "train.py (uid 1001, pid 7)"


def test_busy_cpus_are_an_average_since_the_start(tmp_path: Path) -> None:
    host = SimulatedHost("hgx-h100")
    facts = found(probe(host))
    assert busy_cpus(facts.processes, facts.taken_at) == pytest.approx(16, rel=0.01)
    assert busy_cpus(facts.processes, 0.0) is None
    add_process(tmp_path, 7, files=JOB)
    assert busy_cpus([only(tmp_path)], facts.taken_at) is None


def test_a_process_that_nvml_lists_is_read_on_a_node_with_too_many_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.facts.jobs.processes._MAX_SCANNED", 2)
    for pid in (1, 2, 7, 8):
        add_process(tmp_path, pid, files=JOB if pid > 2 else ())
    host = LocalHost(str(tmp_path))
    assert found(probe(host)).processes == ()
    assert [process.pid for process in found(probe(host, also=[8, 9])).processes] == [8]


@pytest.mark.parametrize("file", ["cmdline", "environ", "maps"])
def test_a_process_whose_memory_hangs_is_waited_for_once_and_not_at_all_without_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    released, asked = threading.Event(), []

    class Hanging(LocalHost):
        def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
            if path == f"/proc/41/{file}":
                asked.append(path)
                released.wait(60)
            return super().read_bytes(path, limit)

    monkeypatch.setattr("probes.facts.jobs.processes.MEMORY_SECONDS", 0.5)
    add_process(tmp_path, 41, files=("/dev/nvidia0",))
    add_process(tmp_path, 42, files=("/dev/nvidia0",))
    host = Hanging(str(tmp_path))
    try:
        without = found(probe(host, with_jobs=False))
        assert not asked
        assert [process.gpu_files for process in without.processes] == [("/dev/nvidia0",)] * 2
        assert not without.has_jobs
        for _ in range(3):
            stuck, other = found(probe(host)).processes
            assert isinstance(stuck.environment, Unknown)
            assert stuck.environment.reason is Reason.TIMED_OUT
            assert stuck.gpu_files == ("/dev/nvidia0",)
            assert not isinstance(other.libraries, Unknown)
        assert len(asked) == 1
    finally:
        released.set()


def test_a_thread_of_the_kernel_is_told_by_its_flags(tmp_path: Path) -> None:
    class Hidden(LocalHost):
        """Where the open files of others are refused."""

        def names(self, path: str) -> Maybe[tuple[str, ...]]:
            refused = Unknown(Reason.NEEDS_ROOT, path)
            return refused if path.endswith("/fd") else super().names(path)

        def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
            assert not path.endswith("/cmdline"), "waits for the lock of the process's memory"
            return super().read_bytes(path, limit)

    write(tmp_path, "/proc/1/stat", "1 (a) b) S 0 1 1 0 -1 4194560 0\n")
    write(tmp_path, "/proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0\n")
    write(tmp_path, "/proc/3/stat", "3 (gone) Z 1 1 1 0 -1 4194560 0\n")
    assert found(probe(Hidden(str(tmp_path)))).hidden == 1
