"""Query NVML; each fact is queried separately, so that a failing call costs only one fact."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, false_if_absent, map_known
from probes.host.nvml import FABRIC_STATES, LOST, NvmlFacts, NvmlGpu, NvmlLive, bdf_of, throttle_words

T = TypeVar("T")
# NVML field ids, whose names in nvidia-ml-py have changed (nvml.h NVML_FI_DEV_…).
_FIELD_NVLINK_STATE = 165  # NVML_FI_DEV_NVLINK_GET_STATE, by link
_FIELD_C2C_LINKS = 170
_ALL_LINKS = 0xFFFFFFFF
# (field, scope, bytes of a unit): NVML_FI_DEV_PCIE_COUNT_…, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_… in KiB.
_PCIE_TX, _PCIE_RX = (197, 0, 1), (198, 0, 1)
_NVLINK_TX, _NVLINK_RX = (138, _ALL_LINKS, 1024), (139, _ALL_LINKS, 1024)
_RATES = (_PCIE_TX, _PCIE_RX, _NVLINK_TX, _NVLINK_RX)
_MOST_NVLINKS = 18
_VGPU = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU
_NO_HEALTH = Unknown(Reason.NOT_THERE, "NVML", "not reported by this driver")
_RETRY_SECONDS = 10.0
_SLOW_SECONDS = 3.0  # between two readings of what changes slowly
# A blocking PCIe reading takes 40 ms per GPU, in a thread; each round reads this many GPUs, in turn.
_BLOCKING_READINGS = 1
PCIE_THREAD = "NVML PCIe"


_Slow = tuple[Maybe[int], Maybe[int], Maybe[tuple[str, ...]]]
"""What changes slowly, or where a few seconds do not matter: BAR1 (bytes), SM clock (MHz), throttling."""
_Fabric = tuple[Maybe[str], Maybe[int], Maybe[str], Maybe[int]]
"""A GPU's registration with the NVLink fabric: state, clique, cluster, health."""


class _Session:
    """An initialized NVML session with the GPUs' handles."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.handles: list[Any] = []
        self.bdfs: list[str] = []
        self.lost: dict[int, Unknown] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self.bdfs.append(bdf_of(_string(pynvml.nvmlDeviceGetPciInfo(handle).busId)))
                self.handles.append(handle)
            except pynvml.NVMLError as error:
                self.lost[index] = reason_of(pynvml, error, f"GPU {index}")


def reason_of(pynvml: Any, error: Exception, source: str) -> Unknown:
    """Return the reason for an NVML error."""
    code = getattr(error, "value", None)
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return Unknown(Reason.NOT_THERE, source, "libnvidia-ml.so.1 is not installed")
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return Unknown(Reason.NOT_THERE, source, "the NVIDIA driver is not loaded")
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        detail = "driver/library version mismatch: reload the kernel modules or reboot"
        return Unknown(Reason.DRIVER_ERROR, source, detail)
    if code == pynvml.NVML_ERROR_GPU_IS_LOST:
        return Unknown(Reason.DRIVER_ERROR, source, LOST)
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return Unknown(Reason.NEEDS_ROOT, source)
    if code in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        return Unknown(Reason.NOT_THERE, source, "not supported by this GPU or driver")
    return Unknown(Reason.DRIVER_ERROR, source, printable(str(error), 200))


class NvmlLibrary:
    """The only NVML session: opened at the first question, and retried periodically after a failure."""

    def __init__(self, pynvml: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._pynvml = pynvml
        self._clock = clock
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._failure: Unknown | None = None
        self._tried_at = 0.0
        self._counters: dict[tuple[str, int], tuple[float, int]] = {}  # by GPU and field
        self._slow: dict[str, tuple[float, _Slow]] = {}
        self._blocking: dict[str, tuple[Maybe[float], Maybe[float]]] = {}
        self._pcie_reader: threading.Thread | None = None
        self._turn = 0

    def release(self) -> None:
        """End the session, which keeps the driver module in use; the next question opens a new one."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._session is not None:
            self._ask("NVML", self._pynvml.nvmlShutdown)
            self._session = None
            self._slow.clear()

    def _open(self) -> _Session | Unknown:
        if self._session is not None:
            return self._session
        if self._failure is not None and self._clock() - self._tried_at < _RETRY_SECONDS:
            return self._failure
        self._tried_at = self._clock()
        if self._pynvml is None:
            import pynvml  # takes 23 ms; a node without the NVIDIA driver must not pay for it

            self._pynvml = pynvml
        try:
            self._pynvml.nvmlInit()
            self._session = _Session(self._pynvml)
        except self._pynvml.NVMLError as error:
            self._failure = reason_of(self._pynvml, error, "NVML")
            return self._failure
        return self._session

    def _ask(self, source: str, call: Callable[[], T]) -> Maybe[T]:
        """Make a call; a failure costs only this fact."""
        try:
            return call()
        except self._pynvml.NVMLError as error:
            return reason_of(self._pynvml, error, source)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            return Unknown(Reason.DRIVER_ERROR, source, printable(f"{type(error).__name__}: {error}", 200))

    def _text(self, source: str, call: Callable[[], Any]) -> Maybe[str]:
        return map_known(self._ask(source, call), lambda answer: printable(_string(answer), 200))

    def facts(self) -> Maybe[NvmlFacts]:
        """Return driver and GPUs; the reason says: no library, no driver, version mismatch, GPU lost."""
        with self._lock:
            # Always in a new session: GPUs come and go, and a reloaded driver invalidates every handle.
            self._end()
            session = self._open()
            if isinstance(session, Unknown):
                return session
            nv = session.pynvml
            cuda = self._ask("NVML CUDA version", nv.nvmlSystemGetCudaDriverVersion_v2)
            # Not supported before Hopper and driver 535.
            confidential = self._ask("NVML", lambda: bool(nv.nvmlSystemGetConfComputeState().ccFeature))
            gpus = [self._gpu(session, number) for number in range(len(session.handles))]
            return NvmlFacts(
                driver_version=self._text("NVML driver version", nv.nvmlSystemGetDriverVersion),
                cuda_version=map_known(cuda, cuda_text),
                gpus=(*gpus, *session.lost.values()),
                confidential_computing=false_if_absent(confidential),
            )

    def _gpu(self, session: _Session, number: int) -> Maybe[NvmlGpu]:
        nv, handle, bdf = session.pynvml, session.handles[number], session.bdfs[number]
        name = self._text(bdf, lambda: nv.nvmlDeviceGetName(handle))
        if isinstance(name, Unknown) and name.reason is Reason.DRIVER_ERROR:
            return Unknown(name.reason, bdf, name.detail)
        peers = self._nvlink_peers(session, handle, bdf)
        state, clique, cluster, health = self._fabric(nv, handle, bdf)
        indexes = [i for i in range(len(session.handles) + len(session.lost)) if i not in session.lost]
        facts = NvmlGpu(
            index=indexes[number],
            bdf=bdf,
            name=name,
            uuid=self._text(bdf, lambda: nv.nvmlDeviceGetUUID(handle)),
            compute_capability=self._ask(bdf, lambda: _pair(nv.nvmlDeviceGetCudaComputeCapability(handle))),
            memory_total_bytes=self._ask(bdf, lambda: int(nv.nvmlDeviceGetMemoryInfo(handle).total)),
            bar1_total_bytes=self._ask(bdf, lambda: int(nv.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)),
            nvlinks=peers if isinstance(peers, Unknown) else sum(links for _, links in peers),
            nvlink_peers=peers,
            c2c_links=self._c2c(session, handle, bdf),
            persistence=self._ask(bdf, lambda: bool(nv.nvmlDeviceGetPersistenceMode(handle))),
            # A GPU that does not support MIG is not partitioned.
            mig=false_if_absent(self._ask(bdf, lambda: bool(nv.nvmlDeviceGetMigMode(handle)[0]))),
            is_vgpu=self._ask(bdf, lambda: nv.nvmlDeviceGetVirtualizationMode(handle) == _VGPU),
            fabric=state,
            fabric_clique=clique,
            fabric_cluster=cluster,
            fabric_health=health,
            serial=self._text(bdf, lambda: nv.nvmlDeviceGetSerial(handle)),
        )
        # For a lost GPU, the driver may still return cached values such as the name.
        for answer in vars(facts).values():
            if isinstance(answer, Unknown) and answer.detail == LOST:
                return Unknown(answer.reason, bdf, LOST)
        return facts

    def _fabric(self, nv: Any, handle: Any, bdf: str) -> _Fabric:
        """Ask nvmlDeviceGetGpuFabricInfoV, and the older call of drivers without it (no health)."""

        def ask(structure: str, function: str) -> Any:
            info = getattr(nv, structure)()
            getattr(nv, function)(handle, ctypes.byref(info))
            return info

        newer = partial(ask, "c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV")
        info = self._ask(bdf, newer)
        if isinstance(info, Unknown):
            info = self._ask(bdf, partial(ask, "c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"))
        if isinstance(info, Unknown):
            # Not supported before Hopper and by old drivers.
            none = info.reason is Reason.NOT_THERE
            return FABRIC_STATES[0] if none else info, info, info, info
        number = int(info.state) & 0xFF  # nvmlGpuFabricState_t is an unsigned char
        state = FABRIC_STATES[number] if number < len(FABRIC_STATES) else "unknown"
        if state == "completed" and int(info.status):
            state = "failed"
        if state != "completed":
            unset = Unknown(Reason.NOT_THERE, bdf, f"the NVLink fabric is {state}")
            return state, unset, unset, unset
        clique = self._ask(bdf, lambda: int(info.cliqueId))
        cluster = self._ask(bdf, lambda: _uuid_text(bytes(info.clusterUuid)))
        health = self._ask(bdf, lambda: int(info.healthMask)) if hasattr(info, "healthMask") else _NO_HEALTH
        return state, clique, cluster, health

    def _field(self, session: _Session, handle: Any, field: int, scope: int = 0) -> Maybe[int]:
        return self._fields(session, handle, ((field, scope),))[0]

    def _fields(self, session: _Session, handle: Any, fields: Sequence[tuple[int, int]]) -> list[Maybe[int]]:
        """Return values of nvmlDeviceGetFieldValues, each from the right member of the union."""

        def decode(value: Any) -> int:
            if value.nvmlReturn != 0:
                raise session.pynvml.NVMLError(value.nvmlReturn)
            return int(getattr(value.value, _MEMBERS[int(value.valueType)]))

        answer = self._ask(
            "NVML fields", lambda: list(session.pynvml.nvmlDeviceGetFieldValues(handle, list(fields)))
        )
        if isinstance(answer, Unknown):
            return [answer] * len(fields)
        return [
            self._ask(f"NVML field {field}", partial(decode, value))
            for (field, _), value in zip(fields, answer, strict=True)
        ]

    def _c2c(self, session: _Session, handle: Any, bdf: str) -> Maybe[int]:
        """Return the links; 1 if only the newer call answers, which tells that there are some."""
        links = self._field(session, handle, _FIELD_C2C_LINKS)
        if not isinstance(links, Unknown) and links:
            return links
        enabled = self._ask(bdf, lambda: bool(session.pynvml.nvmlDeviceGetC2cModeInfoV(handle).isC2cEnabled))
        if enabled is True:
            return 1
        # Drivers and GPUs without the field have no such links.
        return 0 if isinstance(links, Unknown) and links.reason is Reason.NOT_THERE else links

    def _nvlink_peers(self, session: _Session, handle: Any, bdf: str) -> Maybe[tuple[tuple[str, int], ...]]:
        """Return (remote BDF, active links) for each remote; () if the GPU has no NVLinks."""
        nv = session.pynvml
        peers: dict[str, int] = {}
        for link in range(_MOST_NVLINKS):
            state = self._ask(bdf, partial(nv.nvmlDeviceGetNvLinkState, handle, link))
            if isinstance(state, Unknown):
                state = self._field(session, handle, _FIELD_NVLINK_STATE, link)
            if isinstance(state, Unknown):
                if link == 0 and state.reason is not Reason.NOT_THERE:
                    return state
                break
            if not state:
                continue
            remote = self._ask(bdf, partial(nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            # In a VM behind Hopper's NVSwitches, remotes are hidden: count all links as one fabric.
            where = "fabric" if isinstance(remote, Unknown) else bdf_of(_string(remote.busId))
            peers[where] = peers.get(where, 0) + 1
        return tuple(sorted(peers.items()))

    def live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """Return one reading of every GPU."""
        with self._lock:
            session = self._open()
            if isinstance(session, Unknown):
                return session
            count = len(session.handles)
            self._turn = (self._turn + _BLOCKING_READINGS) % count if count else 0
            return tuple(self._live(session, number) for number in range(count))

    def _live(self, session: _Session, number: int) -> NvmlLive:
        nv, handle, bdf = session.pynvml, session.handles[number], session.bdfs[number]
        sent, received, nvlink_sent, nvlink_received = self._rates(session, number)
        bar1_used, sm_clock, throttling = self._slow_facts(nv, handle, bdf)
        return NvmlLive(
            bdf=bdf,
            utilization_percent=self._ask(bdf, lambda: int(nv.nvmlDeviceGetUtilizationRates(handle).gpu)),
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
            nvlink_tx_bytes_per_second=nvlink_sent,
            nvlink_rx_bytes_per_second=nvlink_received,
            bar1_used_bytes=bar1_used,
            sm_clock_mhz=sm_clock,
            throttle_reasons=throttling,
        )

    def _slow_facts(self, nv: Any, handle: Any, bdf: str) -> _Slow:
        """Return them, at most a few seconds old."""
        read_at, slow = self._slow.get(bdf, (0.0, None))
        if slow is not None and self._clock() - read_at < _SLOW_SECONDS:
            return slow
        slow = (
            self._ask(bdf, lambda: int(nv.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Used)),
            self._ask(bdf, lambda: int(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM))),
            self._throttle_reasons(nv, handle, bdf),
        )
        self._slow[bdf] = self._clock(), slow
        return slow

    def _throttle_reasons(self, nv: Any, handle: Any, bdf: str) -> Maybe[tuple[str, ...]]:
        def ask(function: str) -> Maybe[tuple[str, ...]]:
            return self._ask(bdf, lambda: throttle_words(int(getattr(nv, function)(handle))))

        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
        # Drivers before 535 have only the old name.
        old = isinstance(reasons, Unknown) and reasons.reason is Reason.NOT_THERE
        return ask("nvmlDeviceGetCurrentClocksThrottleReasons") if old else reasons

    def _rates(self, session: _Session, number: int) -> list[Maybe[float]]:
        """Return bytes per second from and to the GPU, over PCIe and over NVLink."""
        counters = self._fields(session, session.handles[number], [(field, at) for field, at, _ in _RATES])
        now = self._clock()
        rates = [
            self._rate(session.bdfs[number], field, counter, unit, now)
            for (field, _, unit), counter in zip(_RATES, counters, strict=True)
        ]
        if any(isinstance(counter, Unknown) for counter in counters[:2]):
            rates[:2] = self._blocking_pcie(session, number)
        return rates

    def _rate(self, bdf: str, field: int, counter: Maybe[int], unit: int, now: float) -> Maybe[float]:
        if isinstance(counter, Unknown):
            return counter
        before = self._counters.get((bdf, field))
        self._counters[bdf, field] = now, counter
        if before is None or now <= before[0]:
            return Unknown(Reason.NOT_THERE, bdf, "a rate needs two readings")
        if counter < before[1]:
            return Unknown(Reason.MALFORMED, bdf, "the counter wrapped")
        return (counter - before[1]) * unit / (now - before[0])

    def _blocking_pcie(self, session: _Session, number: int) -> tuple[Maybe[float], Maybe[float]]:
        """Return bytes per second from and to the GPU, as a thread has read them from the GPUs in turn."""
        reader = self._pcie_reader
        is_its_turn = (number - self._turn) % max(1, len(session.handles)) < _BLOCKING_READINGS
        if is_its_turn and (reader is None or not reader.is_alive()):
            self._pcie_reader = threading.Thread(
                target=self._read_pcie, args=(session, number), name=PCIE_THREAD, daemon=True
            )
            with contextlib.suppress(RuntimeError):  # no more threads available
                self._pcie_reader.start()
        bdf = session.bdfs[number]
        not_yet = Unknown(Reason.NOT_THERE, bdf, "not read yet")
        return self._blocking.get(bdf, (not_yet, not_yet))

    def _read_pcie(self, session: _Session, number: int) -> None:
        """Read KB/s over a window of 20 ms, twice; each call takes as long (nvml.h)."""
        nv, handle, bdf = session.pynvml, session.handles[number], session.bdfs[number]
        sent = self._ask(bdf, lambda: nv.nvmlDeviceGetPcieThroughput(handle, 0) * 1000.0)
        received = self._ask(bdf, lambda: nv.nvmlDeviceGetPcieThroughput(handle, 1) * 1000.0)
        self._blocking[bdf] = sent, received


# nvmlValueType_t: the member of nvmlValue_t with the value.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def cuda_text(number: int) -> str:
    """Return "12.4" for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _pair(values: Any) -> tuple[int, int]:
    major, minor = values
    return int(major), int(minor)


def _string(text: Any) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _uuid_text(content: bytes) -> str:
    from uuid import UUID  # imports platform, for the few nodes that are in a fabric

    return str(UUID(bytes=content))
