"""Read a live node for the dashboard, and record it on request with the same readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from probes.host.machine.local import LocalHost
from probes.host.protocol import Host
from probes.snapshot.nic_roles import roles_of
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.reading_thread import Probed, RecordingEnded, RecordingState, Report, Sampled

if TYPE_CHECKING:  # imported on first use
    from probes.checks.judgment import Judgment
    from probes.snapshot.examination import Examination
    from probes.topology.paths import Topology
    from tui.runtime.recorder import Recorded, Recorder


class LiveSource:
    """A live node; all methods run in the reading thread unless they say otherwise."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.monitor = NodeMonitor(host)
        self._shown: Topology | None = None
        self._recorder: Recorder | None = None
        self._record = False

    def read(self, probe: bool) -> Iterator[Report]:
        """Yield a reading, after a probe of the whole node if that has changed or with `probe`."""
        monitor = self.monitor
        failed = self._begin() if self._record and self._recorder is None else None
        if failed is not None:
            yield failed
        # A recording starts with the whole node.
        begins = self._recorder is not None and not self._recorder.moments
        monitor.read(probe or begins)
        if monitor.is_probed and self._recorder is not None:
            self._recorder.host.note_probe()
        if begins:  # record what the doctor reads too
            monitor.check()
        node, topology, reading, live = monitor.node, monitor.topology, monitor.reading, monitor.sample
        assert node is not None
        assert live is not None
        assert topology is not None
        assert reading is not None
        if topology is not self._shown:  # probed again, now or by a check
            self._shown = topology
            yield Probed(node, topology, roles_of(node, topology))
        if self._recorder is not None:
            yield from self._end_moment(self._recorder)
        yield Sampled(reading, monitor.judgment, live.taken_at, live, monitor.needs_check)

    def examine(self, probe: bool = False) -> tuple[Examination, Judgment]:
        """Check the node, after a probe if something has changed or with `probe`."""
        if self.monitor.reading is None:
            self.monitor.read()
        judgment = self.monitor.check(probe)
        assert self.monitor.examination is not None
        return self.monitor.examination, judgment

    def release(self) -> None:
        """Release what keeps the NVIDIA driver from being unloaded, until the next reading."""
        if isinstance(self._host, LocalHost):
            self._host.release()

    # Recording

    def toggle_recording(self) -> bool:
        """Start recording with the next reading (True), or stop; may be called from any thread."""
        self._record = not self._record
        return self._record

    def close(self) -> Recorded | None:
        """End a running recording, from any thread; RecordingError if its file cannot be written."""
        recorder = self._recorder
        if recorder is None:
            return None
        if not recorder.moments:
            recorder.drop()
            return None
        return recorder.finish()

    def _begin(self) -> RecordingEnded | None:
        """Start recording the host; return the reason if it cannot be recorded."""
        from probes.recording.format import RecordingError
        from tui.runtime.recorder import Recorder, default_path

        try:
            platform = self.monitor.node.platform if self.monitor.node else None
            self._recorder = Recorder(self._host, default_path(platform, self._host.wall_clock()))
        except RecordingError as error:
            self._record = False
            return RecordingEnded(str(error), failed=True)
        self.monitor.host = self._recorder.host
        return None

    def _end_moment(self, recorder: Recorder) -> Iterator[Report]:
        """Write the moment, and end the recording if requested or full."""
        from probes.recording.format import RecordingError

        try:
            recorder.host.end_moment()
            if self._record and not recorder.is_full:
                yield RecordingState(recorder.moments, recorder.size_bytes)
                return
            why = "The recording has reached its maximum length. " if recorder.is_full else ""
            recorded = recorder.finish()
            ended = RecordingEnded(f"{why}Recorded {recorded}. {recorded.privacy() if recorded else ''}")
        except RecordingError as error:
            recorder.drop()
            ended = RecordingEnded(str(error), failed=True)
        self.monitor.host, self._recorder, self._record = self._host, None, False
        yield ended
