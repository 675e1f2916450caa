"""NVML's facts as plain dataclasses, each asked one by one so that one failing call costs one fact."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

T = TypeVar("T")
_NOT_ASKED = Unknown(Reason.NOT_RECORDED, "NVML", "not asked")
LOST = "the GPU has fallen off the bus"
"""What NVML_ERROR_GPU_IS_LOST means."""


@dataclass(frozen=True)
class NvmlGpu:
    """What NVML says of one GPU and does not change from second to second."""

    index: int
    bdf: str  # "0000:1b:00.0", sysfs spelling
    name: Maybe[str]
    uuid: Maybe[str]
    compute_capability: Maybe[tuple[int, int]]
    memory_total_bytes: Maybe[int]
    bar1_total_bytes: Maybe[int]
    link_generation_max: Maybe[int]  # of GPU and slot together
    link_width_max: Maybe[int]
    nvlinks: Maybe[int]  # active NVLinks
    nvlink_peers: Maybe[tuple[tuple[str, int], ...]]  # (remote BDF, links); a switch is a remote too
    c2c_links: Maybe[int]  # chip-to-chip links to the CPU (Grace); 0 elsewhere
    persistence: Maybe[bool]
    mig: Maybe[bool]
    is_vgpu: Maybe[bool] = _NOT_ASKED  # a share of a GPU that a hypervisor made
    fabric: Maybe[str] = _NOT_ASKED  # one of FABRIC_STATES, or "failed"


@dataclass(frozen=True)
class NvmlFacts:
    """What NVML says of the driver and of every GPU it can reach."""

    driver_version: Maybe[str]
    nvml_version: Maybe[str]
    cuda_version: Maybe[str]  # "12.4", the newest the driver serves
    gpus: tuple[Maybe[NvmlGpu], ...]  # a GPU off the bus is an Unknown whose source is its index or BDF
    confidential_computing: Maybe[bool] = _NOT_ASKED  # other devices are kept out of GPU memory


@dataclass(frozen=True)
class NvmlLive:
    """One reading of one GPU's moving figures."""

    bdf: str
    utilisation_percent: Maybe[int]
    memory_used_bytes: Maybe[int]
    temperature_celsius: Maybe[int]
    power_watts: Maybe[float]
    pcie_tx_bytes_per_second: Maybe[float]  # from the GPU
    pcie_rx_bytes_per_second: Maybe[float]  # to the GPU
    link_generation: Maybe[int]
    link_width: Maybe[int]
    processes: Maybe[tuple[int, ...]]  # pids with a compute context


# NVML field ids, which nvidia-ml-py names from time to time differently (nvml.h NVML_FI_DEV_…).
_FIELD_NVLINK_STATE = 165  # NVML_FI_DEV_NVLINK_GET_STATE, by link
_FIELD_C2C_LINKS = 170
_FIELD_PCIE_TX_BYTES = 197
_FIELD_PCIE_RX_BYTES = 198
_MOST_NVLINKS = 18
FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
"""Where registration with the NVLink fabric stands, by nvmlGpuFabricState_t."""
_VGPU = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU
_RETRY_SECONDS = 10.0
# A blocking PCIe reading takes 20 ms of every GPU; so many are made at one reading, in turn.
_BLOCKING_READINGS = 1


def bdf_of(bus_id: str) -> str:
    """NVML's "00000000:1B:00.0" in sysfs spelling, "0000:1b:00.0"; longer domains keep their digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain.lstrip('0')}:{rest}"


def cuda_text(number: int) -> str:
    """As "12.4" of 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


class _Session:
    """An initialised NVML and the GPUs' handles."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.handles: list[Any] = []
        self.bdfs: list[str] = []
        self.lost: dict[int, Unknown] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
                self.bdfs.append(bdf_of(bus_id.decode() if isinstance(bus_id, bytes) else bus_id))
                self.handles.append(handle)
            except pynvml.NVMLError as error:
                self.lost[index] = reason_of(pynvml, error, f"GPU {index}")


def reason_of(pynvml: Any, error: Exception, source: str) -> Unknown:
    """The typed reason behind an NVML error."""
    code = getattr(error, "value", None)
    text = printable(str(error), 200)
    if code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,):
        return Unknown(Reason.NOT_THERE, source, "libnvidia-ml.so.1 is not installed")
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return Unknown(Reason.NOT_THERE, source, "the NVIDIA driver is not loaded")
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        told = "driver/library version mismatch: reload the kernel modules or reboot"
        return Unknown(Reason.DRIVER_ERROR, source, told)
    if code == pynvml.NVML_ERROR_GPU_IS_LOST:
        return Unknown(Reason.DRIVER_ERROR, source, LOST)
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return Unknown(Reason.NEEDS_ROOT, source)
    if code in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        return Unknown(Reason.NOT_THERE, source, "not supported by this GPU or driver")
    return Unknown(Reason.DRIVER_ERROR, source, text)


class NvmlLibrary:
    """The one NVML session; opened at the first question, and after a failure tried again now and then."""

    def __init__(self, pynvml: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._pynvml = pynvml
        self._clock = clock
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._failure: Unknown | None = None
        self._tried_at = 0.0
        self._counters: dict[str, tuple[float, int, int]] = {}
        self._blocking: dict[str, tuple[float, float]] = {}
        self._turn = 0

    def let_go(self) -> None:
        """Ends the session, which holds the driver's module; the next question opens another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._session is not None:
            self._ask("NVML", self._pynvml.nvmlShutdown)
            self._session = None

    def _open(self) -> _Session | Unknown:
        if self._session is not None:
            return self._session
        if self._failure is not None and self._clock() - self._tried_at < _RETRY_SECONDS:
            return self._failure
        self._tried_at = self._clock()
        if self._pynvml is None:
            import pynvml  # 23 ms, of which a node without NVIDIA driver must know nothing at start

            self._pynvml = pynvml
        try:
            self._pynvml.nvmlInit()
            self._session = _Session(self._pynvml)
        except self._pynvml.NVMLError as error:
            self._failure = reason_of(self._pynvml, error, "NVML")
            return self._failure
        return self._session

    def _ask(self, source: str, call: Callable[[], T]) -> Maybe[T]:
        """One guarded call; a failure costs this fact and no other."""
        try:
            return call()
        except self._pynvml.NVMLError as error:
            return reason_of(self._pynvml, error, source)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            return Unknown(Reason.DRIVER_ERROR, source, printable(f"{type(error).__name__}: {error}", 200))

    def _text(self, source: str, call: Callable[[], Any]) -> Maybe[str]:
        answer = self._ask(source, call)
        if isinstance(answer, Unknown):
            return answer
        return printable(answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer), 200)

    def facts(self) -> Maybe[NvmlFacts]:
        """Driver and GPUs; the reason says: no library, no driver, versions differ, GPU lost."""
        with self._lock:
            # Asked anew: GPUs come and go, and a reloaded driver invalidates every handle.
            self._end()
            session = self._open()
            if isinstance(session, Unknown):
                return session
            nv = session.pynvml
            cuda = self._ask("NVML CUDA version", nv.nvmlSystemGetCudaDriverVersion_v2)
            gpus: list[Maybe[NvmlGpu]] = [
                self._gpu(session, number) for number in range(len(session.handles))
            ]
            return NvmlFacts(
                driver_version=self._text("NVML driver version", nv.nvmlSystemGetDriverVersion),
                nvml_version=self._text("NVML version", nv.nvmlSystemGetNVMLVersion),
                cuda_version=cuda if isinstance(cuda, Unknown) else cuda_text(cuda),
                gpus=(*gpus, *session.lost.values()),
                confidential_computing=self._confidential_computing(nv),
            )

    def _confidential_computing(self, nv: Any) -> Maybe[bool]:
        state = self._ask("NVML", lambda: bool(nv.nvmlSystemGetConfComputeState().ccFeature))
        # GPUs before Hopper and drivers before 535 do not have it.
        return False if isinstance(state, Unknown) and state.reason is Reason.NOT_THERE else state

    def _gpu(self, session: _Session, number: int) -> Maybe[NvmlGpu]:
        nv, handle, bdf = session.pynvml, session.handles[number], session.bdfs[number]
        name = self._text(bdf, lambda: nv.nvmlDeviceGetName(handle))
        if isinstance(name, Unknown) and name.reason is Reason.DRIVER_ERROR:
            return Unknown(name.reason, bdf, name.detail)
        memory = self._ask(bdf, lambda: int(nv.nvmlDeviceGetMemoryInfo(handle).total))
        bar1 = self._ask(bdf, lambda: int(nv.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total))
        peers = self._nvlink_peers(session, handle, bdf)
        facts = NvmlGpu(
            index=self._index(session, number),
            bdf=bdf,
            name=name,
            uuid=self._text(bdf, lambda: nv.nvmlDeviceGetUUID(handle)),
            compute_capability=self._ask(bdf, lambda: _pair(nv.nvmlDeviceGetCudaComputeCapability(handle))),
            memory_total_bytes=memory,
            bar1_total_bytes=bar1,
            link_generation_max=self._ask(bdf, lambda: int(nv.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
            link_width_max=self._ask(bdf, lambda: int(nv.nvmlDeviceGetMaxPcieLinkWidth(handle))),
            nvlinks=peers if isinstance(peers, Unknown) else sum(links for _, links in peers),
            nvlink_peers=peers,
            c2c_links=self._c2c(session, handle, bdf),
            persistence=self._ask(bdf, lambda: bool(nv.nvmlDeviceGetPersistenceMode(handle))),
            mig=self._mig(nv, handle, bdf),
            is_vgpu=self._ask(bdf, lambda: nv.nvmlDeviceGetVirtualizationMode(handle) == _VGPU),
            fabric=self._fabric(nv, handle, bdf),
        )
        # For a lost GPU the driver may still answer what it has cached, such as the name.
        for answer in vars(facts).values():
            if isinstance(answer, Unknown) and answer.detail == LOST:
                return Unknown(answer.reason, bdf, LOST)
        return facts

    def _fabric(self, nv: Any, handle: Any, bdf: str) -> Maybe[str]:
        def ask() -> str:
            info = nv.c_nvmlGpuFabricInfo_t()
            nv.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
            state = FABRIC_STATES[int(info.state)] if int(info.state) < len(FABRIC_STATES) else "unknown"
            return "failed" if state == "completed" and int(info.status) else state

        state = self._ask(bdf, ask)
        # GPUs before Hopper and old drivers do not have it.
        return FABRIC_STATES[0] if isinstance(state, Unknown) and state.reason is Reason.NOT_THERE else state

    def _index(self, session: _Session, number: int) -> int:
        return [i for i in range(len(session.handles) + len(session.lost)) if i not in session.lost][number]

    def _mig(self, nv: Any, handle: Any, bdf: str) -> Maybe[bool]:
        mode = self._ask(bdf, lambda: bool(nv.nvmlDeviceGetMigMode(handle)[0]))
        # A GPU that cannot be partitioned is not partitioned.
        return False if isinstance(mode, Unknown) and mode.reason is Reason.NOT_THERE else mode

    def _field(self, session: _Session, handle: Any, field: int, scope: int = 0) -> Maybe[int]:
        """One value of nvmlDeviceGetFieldValues, whichever of the union's members holds it."""

        def ask() -> int:
            (value,) = session.pynvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])
            if value.nvmlReturn != 0:
                raise session.pynvml.NVMLError(value.nvmlReturn)
            member = _MEMBERS[int(value.valueType)]
            return int(getattr(value.value, member))

        return self._ask(f"NVML field {field}", ask)

    def _c2c(self, session: _Session, handle: Any, bdf: str) -> Maybe[int]:
        links = self._field(session, handle, _FIELD_C2C_LINKS)
        # Drivers and GPUs without the field have no such link.
        return 0 if isinstance(links, Unknown) and links.reason is Reason.NOT_THERE else links

    def _nvlink_peers(self, session: _Session, handle: Any, bdf: str) -> Maybe[tuple[tuple[str, int], ...]]:
        """(remote BDF, active links), counted over the links; () where the GPU has none."""
        nv = session.pynvml
        peers: dict[str, int] = {}
        for link in range(_MOST_NVLINKS):
            state = self._ask(bdf, partial(_link_state, nv, handle, link))
            if isinstance(state, Unknown):
                state = self._field(session, handle, _FIELD_NVLINK_STATE, link)
            if isinstance(state, Unknown):
                if link == 0 and state.reason is not Reason.NOT_THERE:
                    return state
                break
            if not state:
                continue
            remote = self._ask(bdf, partial(nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            # Behind Hopper's NVSwitches in a VM the remote end is not told: links to one fabric.
            where = "fabric" if isinstance(remote, Unknown) else bdf_of(_string(remote.busId))
            peers[where] = peers.get(where, 0) + 1
        return tuple(sorted(peers.items()))

    def live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """One reading of every GPU."""
        with self._lock:
            session = self._open()
            if isinstance(session, Unknown):
                return session
            count = len(session.handles)
            self._turn = (self._turn + _BLOCKING_READINGS) % count if count else 0
            return tuple(self._live(session, number) for number in range(count))

    def _live(self, session: _Session, number: int) -> NvmlLive:
        nv, handle, bdf = session.pynvml, session.handles[number], session.bdfs[number]
        sent, received = self._pcie(session, number)
        return NvmlLive(
            bdf=bdf,
            utilisation_percent=self._ask(bdf, lambda: int(nv.nvmlDeviceGetUtilizationRates(handle).gpu)),
            memory_used_bytes=self._ask(bdf, lambda: int(nv.nvmlDeviceGetMemoryInfo(handle).used)),
            temperature_celsius=self._ask(
                bdf, lambda: int(nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU))
            ),
            power_watts=self._ask(bdf, lambda: nv.nvmlDeviceGetPowerUsage(handle) / 1000),
            pcie_tx_bytes_per_second=sent,
            pcie_rx_bytes_per_second=received,
            link_generation=self._ask(bdf, lambda: int(nv.nvmlDeviceGetCurrPcieLinkGeneration(handle))),
            link_width=self._ask(bdf, lambda: int(nv.nvmlDeviceGetCurrPcieLinkWidth(handle))),
            processes=self._ask(
                bdf, lambda: tuple(int(p.pid) for p in nv.nvmlDeviceGetComputeRunningProcesses(handle))
            ),
        )

    def _pcie(self, session: _Session, number: int) -> tuple[Maybe[float], Maybe[float]]:
        """Bytes a second from and to the GPU: of its counters, else of a 20 ms reading made in turn."""
        handle, bdf = session.handles[number], session.bdfs[number]
        sent = self._field(session, handle, _FIELD_PCIE_TX_BYTES)
        received = self._field(session, handle, _FIELD_PCIE_RX_BYTES)
        now = self._clock()
        if not isinstance(sent, Unknown) and not isinstance(received, Unknown):
            before = self._counters.get(bdf)
            self._counters[bdf] = now, sent, received
            first = Unknown(Reason.NOT_THERE, bdf, "a rate needs two readings")
            if before is None or now <= before[0]:
                return first, first
            if sent < before[1] or received < before[2]:
                back = Unknown(Reason.MALFORMED, bdf, "the counter wrapped")
                return back, back
            seconds = now - before[0]
            return (sent - before[1]) / seconds, (received - before[2]) / seconds
        return self._blocking_pcie(session, number)

    def _blocking_pcie(self, session: _Session, number: int) -> tuple[Maybe[float], Maybe[float]]:
        nv, handle, bdf = session.pynvml, session.handles[number], session.bdfs[number]
        if (number - self._turn) % max(1, len(session.handles)) < _BLOCKING_READINGS:
            # KB/s over a 20 ms window, which each call waits out (nvml.h).
            sent = self._ask(bdf, lambda: nv.nvmlDeviceGetPcieThroughput(handle, 0) * 1000.0)
            received = self._ask(bdf, lambda: nv.nvmlDeviceGetPcieThroughput(handle, 1) * 1000.0)
            if isinstance(sent, Unknown) or isinstance(received, Unknown):
                return sent, received
            self._blocking[bdf] = sent, received
        not_yet = Unknown(Reason.NOT_THERE, bdf, "not read yet")
        return self._blocking.get(bdf, (not_yet, not_yet))


# nvmlValueType_t: which member of nvmlValue_t holds the value.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _link_state(nv: Any, handle: Any, link: int) -> int:
    return int(nv.nvmlDeviceGetNvLinkState(handle, link))


def _pair(values: Any) -> tuple[int, int]:
    major, minor = values
    return int(major), int(minor)


def _string(text: Any) -> str:
    return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)
