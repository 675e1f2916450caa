"""NVML with all its errors, from a fake library."""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.machine.nvml_library import PCIE_THREAD, NvmlLibrary, cuda_text
from probes.host.nvml import LOST, NvmlFacts, NvmlGpu, NvmlLive, bdf_of

ERRORS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """A library with two GPUs; `broken` maps functions to the errors that they raise."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    def __init__(self, **broken: int) -> None:
        for name, value in ERRORS.items():
            setattr(self, name, value)
        self.broken = broken
        self.c2c = False
        self.pcie_bytes = 0
        self.nvlink_kib = 0
        self.field_calls = 0
        self.reasons = 0
        self.slow_calls = 0
        self.throughput_calls = 0
        self.inits = 0

    def nvmlInit(self) -> None:
        self.inits += 1

    def nvmlDeviceGetPcieThroughput(self, handle: int, counter: int) -> int:
        self.throughput_calls += 1
        return 1000 * (counter + 1)

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[tuple[int, int]]) -> list[Any]:
        self.field_calls += 1
        values = {197: self.pcie_bytes, 198: 2 * self.pcie_bytes, 170: 0}
        values |= {138: self.nvlink_kib, 139: 3 * self.nvlink_kib}
        return [
            SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=values[field]))
            if field in values and f"field{field}" not in self.broken
            else SimpleNamespace(nvmlReturn=3, valueType=3, value=None)
            for field, _ in fields
        ]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        self.slow_calls += 1
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x20

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 4:
            raise NVMLError(3)
        return int(link != 3)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=b"00000000:83:00.0" if link < 2 else b"00000000:84:00.0")

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            broken = object.__getattribute__(self, "broken")
            if name in broken:

                def fail(*_: object) -> None:
                    raise NVMLError(broken[name])

                return fail
            answers: dict[str, Any] = {
                "nvmlShutdown": lambda: None,
                "nvmlDeviceGetCount": lambda: 2,
                "nvmlDeviceGetHandleByIndex": lambda index: index,
                "nvmlDeviceGetPciInfo": lambda h: SimpleNamespace(busId=f"00000000:{0x1A + h:02X}:00.0"),
                "nvmlSystemGetDriverVersion": lambda: "570.124.06",
                "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
                "nvmlDeviceGetName": lambda h: "NVIDIA H100\x1b[31m",
                "nvmlDeviceGetUUID": lambda h: f"GPU-{h}",
                "nvmlDeviceGetSerial": lambda h: f"165092300000{h}",
                "nvmlDeviceGetCudaComputeCapability": lambda h: (9, 0),
                "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=80 << 30, used=1 << 30),
                "nvmlDeviceGetBAR1MemoryInfo": lambda h: SimpleNamespace(
                    bar1Total=128 << 30, bar1Used=2 << 30
                ),
                "nvmlDeviceGetClockInfo": lambda h, clock: 1980,
                "nvmlDeviceGetCurrPcieLinkGeneration": lambda h: 1,
                "nvmlDeviceGetCurrPcieLinkWidth": lambda h: 16,
                "nvmlDeviceGetPersistenceMode": lambda h: 1,
                "nvmlDeviceGetC2cModeInfoV": lambda h: SimpleNamespace(isC2cEnabled=int(self.c2c)),
                "nvmlDeviceGetMigMode": lambda h: (0, 0),
                "nvmlDeviceGetVirtualizationMode": lambda h: 2 * h,
                "nvmlSystemGetConfComputeState": lambda: SimpleNamespace(ccFeature=1),
                "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=92),
                "nvmlDeviceGetTemperature": lambda h, sensor: 55,
                "nvmlDeviceGetPowerUsage": lambda h: 650_000,
                "nvmlDeviceGetComputeRunningProcesses": lambda h: [SimpleNamespace(pid=42)],
            }
            if name in answers:
                return answers[name]
        return object.__getattribute__(self, name)


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def facts_of(nvml: FakeNvml) -> NvmlFacts:
    facts = NvmlLibrary(nvml).facts()
    assert isinstance(facts, NvmlFacts)
    return facts


def reading(library: NvmlLibrary) -> tuple[NvmlLive, ...]:
    live = library.live()
    assert not isinstance(live, Unknown)
    return live


def test_two_gpus() -> None:
    facts = facts_of(FakeNvml())
    assert (facts.driver_version, facts.cuda_version) == ("570.124.06", "12.8")
    first, second = facts.gpus
    assert isinstance(first, NvmlGpu)
    assert isinstance(second, NvmlGpu)
    assert (first.serial, second.serial) == ("1650923000000", "1650923000001")
    assert (first.bdf, second.bdf) == ("0000:1a:00.0", "0000:1b:00.0")
    assert first.nvlinks == 3  # one of the four is down
    assert first.nvlink_peers == (("0000:83:00.0", 2), ("0000:84:00.0", 1))
    assert first.c2c_links == 0
    assert (first.is_vgpu, second.is_vgpu) == (False, True)
    assert facts.confidential_computing is True
    assert "\x1b" not in str(first.name)


def test_c2c_is_known_by_either_call() -> None:
    """GB200's library may count no links and know only that there are some."""
    newer = FakeNvml()
    newer.c2c = True
    assert [gpu.c2c_links for gpu in facts_of(newer).gpus if isinstance(gpu, NvmlGpu)] == [1, 1]
    neither = FakeNvml(field170=3, nvmlDeviceGetC2cModeInfoV=3)
    assert [gpu.c2c_links for gpu in facts_of(neither).gpus if isinstance(gpu, NvmlGpu)] == [0, 0]


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        ("NVML_ERROR_LIBRARY_NOT_FOUND", Reason.NOT_THERE, "libnvidia-ml"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", Reason.NOT_THERE, "not loaded"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", Reason.DRIVER_ERROR, "mismatch"),
        ("NVML_ERROR_NO_PERMISSION", Reason.NEEDS_ROOT, ""),
    ],
)
def test_a_failure_has_a_reason(error: str, reason: Reason, words: str) -> None:
    facts = NvmlLibrary(FakeNvml(nvmlInit=ERRORS[error])).facts()
    assert isinstance(facts, Unknown)
    assert facts.reason is reason
    assert words in facts.detail


def test_a_gpu_off_the_bus_does_not_hide_the_other() -> None:
    nvml = FakeNvml()

    def handle(index: int) -> int:
        if index == 0:
            raise NVMLError(ERRORS["NVML_ERROR_GPU_IS_LOST"])
        return index

    nvml.__dict__["nvmlDeviceGetHandleByIndex"] = handle
    original = FakeNvml.__getattribute__

    class Lost(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            return handle if name == "nvmlDeviceGetHandleByIndex" else original(self, name)

    facts = facts_of(Lost())
    known = [gpu for gpu in facts.gpus if isinstance(gpu, NvmlGpu)]
    lost = [gpu for gpu in facts.gpus if isinstance(gpu, Unknown)]
    assert [(gpu.index, gpu.bdf) for gpu in known] == [(1, "0000:1b:00.0")]
    assert "fallen off the bus" in lost[0].detail


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode"])
def test_a_lost_gpu_with_a_cached_name_is_lost(call: str) -> None:
    facts = facts_of(FakeNvml(**{call: ERRORS["NVML_ERROR_GPU_IS_LOST"]}))
    for gpu in facts.gpus:
        assert isinstance(gpu, Unknown)
        assert (gpu.reason, gpu.detail) == (Reason.DRIVER_ERROR, LOST)


def test_one_failing_call_costs_one_fact() -> None:
    facts = facts_of(FakeNvml(nvmlDeviceGetBAR1MemoryInfo=ERRORS["NVML_ERROR_NOT_SUPPORTED"]))
    (gpu, _) = facts.gpus
    assert isinstance(gpu, NvmlGpu)
    assert isinstance(gpu.bar1_total_bytes, Unknown)
    assert gpu.memory_total_bytes == 80 << 30


def test_a_driver_without_confidential_computing() -> None:
    assert facts_of(FakeNvml(nvmlSystemGetConfComputeState=3)).confidential_computing is False
    refused = facts_of(FakeNvml(nvmlSystemGetConfComputeState=4)).confidential_computing
    assert isinstance(refused, Unknown)


@pytest.mark.parametrize(
    ("state", "status", "shown"),
    [
        (0, 0, "not supported"),
        (1, 0, "not started"),
        (2, 0, "in progress"),
        (3, 0, "completed"),
        (3, 999, "failed"),
        (77, 0, "unknown"),
    ],
)
def test_the_state_of_the_nvlink_fabric(state: int, status: int, shown: str) -> None:
    class Info(ctypes.Structure):
        _fields_ = (("state", ctypes.c_uint), ("status", ctypes.c_uint))

    class Fabric(FakeNvml):
        c_nvmlGpuFabricInfo_t = Info

        def nvmlDeviceGetGpuFabricInfo(self, handle: int, info: Any) -> None:
            info._obj.state, info._obj.status = state, status

    gpu = facts_of(Fabric()).gpus[0]
    assert isinstance(gpu, NvmlGpu)
    assert gpu.fabric == shown


def test_the_newer_call_adds_clique_cluster_and_health() -> None:
    class Info(ctypes.Structure):  # nvmlGpuFabricInfo_v2_t
        _fields_ = (
            ("version", ctypes.c_uint),
            ("clusterUuid", ctypes.c_uint8 * 16),
            ("status", ctypes.c_uint),
            ("cliqueId", ctypes.c_uint),
            ("state", ctypes.c_uint),
            ("healthMask", ctypes.c_uint),
        )

    class Fabric(FakeNvml):
        c_nvmlGpuFabricInfo_v2_t = Info

        def nvmlDeviceGetGpuFabricInfoV(self, handle: int, info: Any) -> None:
            info._obj.clusterUuid[:] = list(range(16))
            # The state is one byte; what is behind it is not part of it.
            info._obj.state, info._obj.cliqueId, info._obj.healthMask = 0x0703, 32766, 0x1AA

    gpu = facts_of(Fabric()).gpus[0]
    assert isinstance(gpu, NvmlGpu)
    assert (gpu.fabric, gpu.fabric_clique, gpu.fabric_health) == ("completed", 32766, 0x1AA)
    assert gpu.fabric_cluster == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_a_gpu_that_is_not_registered_has_no_place() -> None:
    class Fabric(FakeNvml):
        c_nvmlGpuFabricInfo_v2_t = type(
            "Info", (ctypes.Structure,), {"_fields_": (("state", ctypes.c_uint), ("status", ctypes.c_uint))}
        )

        def nvmlDeviceGetGpuFabricInfoV(self, handle: int, info: Any) -> None:
            info._obj.state = 2

    gpu = facts_of(Fabric()).gpus[0]
    assert isinstance(gpu, NvmlGpu)
    assert gpu.fabric == "in progress"
    assert isinstance(gpu.fabric_clique, Unknown)
    assert gpu.fabric_clique.detail == "the NVLink fabric is in progress"


def test_a_driver_without_fabric_support() -> None:
    class Older(FakeNvml):
        c_nvmlGpuFabricInfo_t = ctypes.c_uint

    gpu = facts_of(Older(nvmlDeviceGetGpuFabricInfo=3)).gpus[0]
    assert isinstance(gpu, NvmlGpu)
    assert gpu.fabric == "not supported"


def test_pcie_rates_come_from_the_counters() -> None:
    nvml, clock = FakeNvml(), Clock()
    library = NvmlLibrary(nvml, clock)
    first = library.live()
    assert not isinstance(first, Unknown)
    assert isinstance(first[0].pcie_tx_bytes_per_second, Unknown)
    clock.now += 2
    nvml.pcie_bytes = 8_000_000
    second = library.live()
    assert not isinstance(second, Unknown)
    assert second[0].pcie_tx_bytes_per_second == 4_000_000
    assert second[0].pcie_rx_bytes_per_second == 8_000_000
    assert second[0].utilization_percent == 92
    assert second[0].power_watts == 650
    assert nvml.throughput_calls == 0


def test_nvlink_rates_are_those_of_all_links() -> None:
    nvml, clock = FakeNvml(), Clock()
    library = NvmlLibrary(nvml, clock)
    assert isinstance(reading(library)[0].nvlink_tx_bytes_per_second, Unknown)
    clock.now += 2
    nvml.nvlink_kib = 4000
    gpu = reading(library)[0]
    assert gpu.nvlink_tx_bytes_per_second == 2000 * 1024
    assert gpu.nvlink_rx_bytes_per_second == 6000 * 1024
    assert nvml.field_calls == 4  # one for each GPU and reading
    nvml.nvlink_kib = 1
    clock.now += 1
    assert isinstance(reading(library)[0].nvlink_tx_bytes_per_second, Unknown)


def test_without_nvlinks_pcie_rates_are_known() -> None:
    clock = Clock()
    library = NvmlLibrary(FakeNvml(field138=3, field139=3), clock)
    reading(library)
    clock.now += 1
    gpu = reading(library)[0]
    assert gpu.pcie_tx_bytes_per_second == 0
    assert isinstance(gpu.nvlink_tx_bytes_per_second, Unknown)
    assert gpu.nvlink_tx_bytes_per_second.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x100, ()),  # idle, application clocks, display clocks
        (0x4, ("power cap",)),
        (0x4 | 0x20, ("power cap", "thermal")),
        (0x8 | 0x40, ("HW thermal",)),
        (0x8 | 0x80, ("power brake",)),
        (0x8, ("HW slowdown",)),
    ],
)
def test_why_clocks_are_reduced(reasons: int, words: tuple[str, ...]) -> None:
    nvml = FakeNvml()
    nvml.reasons = reasons
    gpu = reading(NvmlLibrary(nvml))[0]
    assert gpu.throttle_reasons == words
    assert (gpu.bar1_used_bytes, gpu.sm_clock_mhz) == (2 << 30, 1980)


def test_what_changes_slowly_is_read_every_few_seconds() -> None:
    nvml, clock = FakeNvml(), Clock()
    library = NvmlLibrary(nvml, clock)
    for _ in range(6):
        reading(library)
        clock.now += 1
    assert nvml.slow_calls == 4  # two GPUs, twice


def test_an_old_driver_has_the_old_name_for_throttle_reasons() -> None:
    gpu = reading(NvmlLibrary(FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=13)))[0]
    assert gpu.throttle_reasons == ("thermal",)


def test_a_failing_slow_call_costs_one_fact() -> None:
    gpu = reading(NvmlLibrary(FakeNvml(nvmlDeviceGetBAR1MemoryInfo=3)))[0]
    assert isinstance(gpu.bar1_used_bytes, Unknown)
    assert gpu.sm_clock_mhz == 1980


def test_a_call_that_blocks_does_not_delay_a_reading() -> None:
    goes_on = threading.Event()

    class Blocking(FakeNvml):
        def nvmlDeviceGetPcieThroughput(self, handle: int, counter: int) -> int:
            goes_on.wait(10)
            return 1000

    library = NvmlLibrary(Blocking(field197=1))
    reading = library.live()
    assert not isinstance(reading, Unknown)
    assert [isinstance(gpu.pcie_tx_bytes_per_second, Unknown) for gpu in reading] == [True] * len(reading)
    goes_on.set()
    wait_for_pcie()
    later = library.live()
    assert not isinstance(later, Unknown)
    assert 1e6 in [gpu.pcie_tx_bytes_per_second for gpu in later]


def wait_for_pcie() -> None:
    for thread in threading.enumerate():
        if thread.name == PCIE_THREAD:
            thread.join()


def test_without_counters_each_reading_measures_one_gpu() -> None:
    nvml = FakeNvml(field197=1)
    library = NvmlLibrary(nvml)
    for _ in range(3):
        reading = library.live()
        wait_for_pcie()
    assert nvml.throughput_calls == 6  # sent and received, one GPU at each reading
    assert not isinstance(reading, Unknown)
    assert [gpu.pcie_tx_bytes_per_second for gpu in reading] == [1e6, 1e6]


def test_a_released_session_is_reopened_by_the_next_question() -> None:
    ended = []

    class Counting(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            return (lambda: ended.append(name)) if name == "nvmlShutdown" else super().__getattribute__(name)

    nvml = Counting()
    library = NvmlLibrary(nvml)
    library.release()
    assert not ended
    library.live()
    library.release()
    library.release()
    assert ended == ["nvmlShutdown"]
    assert not isinstance(library.live(), Unknown)
    assert nvml.inits == 2


def test_a_missing_library_is_retried_only_periodically() -> None:
    nvml, clock = FakeNvml(nvmlInit=12), Clock()
    calls = []
    library = NvmlLibrary(nvml, clock)
    original = FakeNvml.__getattribute__

    class Counting(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            if name == "nvmlInit":
                calls.append(name)
            return original(self, name)

    library = NvmlLibrary(Counting(nvmlInit=12), clock)
    for _ in range(5):
        library.live()
        clock.now += 1
    assert len(calls) == 1
    clock.now += 60
    library.live()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00000008:01:00.0", "0008:01:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
    ],
)
def test_bus_ids_in_sysfs_spelling(nvml: str, sysfs: str) -> None:
    assert bdf_of(nvml) == sysfs


def test_cuda_versions() -> None:
    assert cuda_text(12040) == "12.4"
    assert cuda_text(13000) == "13.0"
