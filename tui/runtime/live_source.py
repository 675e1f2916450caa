"""Read a live node, and record it on request with the same readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from probes.host.local import LocalHost
from probes.host.protocol import Host
from probes.live.live_watch import LiveWatch
from probes.live.ras.events import RasEvents
from probes.live.verdict import examine_with_jobs, with_jobs
from probes.snapshot.nic_roles import roles_of
from probes.snapshot.verdict import ServedCache, judge
from probes.snapshot.watch import Watch
from probes.topology.paths import build
from tui.runtime.sampler import Probed, RecordingEnded, RecordingState, Report, Sampled

if TYPE_CHECKING:  # imported on first use
    from probes.facts.node import Node
    from probes.snapshot.examination import Examination
    from probes.snapshot.rates import Reading
    from probes.topology.file_tree import FileTree
    from tui.runtime.recorder import Recorded, Recorder


class LiveSource:
    """A live node; all methods run in the sampler's thread unless they say otherwise."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._watch = Watch(host)
        self._live = LiveWatch()
        self._probed: Probed | None = None
        self._reading: Reading | None = None
        self._served = ServedCache()
        self._examination: Examination | None = None
        self._recorder: Recorder | None = None
        self._record = False
        self._file: FileTree | None = None  # NCCL's topology file, from the newest examination

    def read(self, probe: bool) -> Iterator[Report]:
        """Yield a reading, after a probe of the whole node if that has changed or with `probe`."""
        failed = self._begin() if self._record and self._recorder is None else None
        if failed is not None:
            yield failed
        # A recording starts with the whole node.
        begins = self._recorder is not None and not self._recorder.moments
        node = self._watch.probe(probe or begins)
        if node is not None:
            if self._recorder is not None:
                self._recorder.host.note_probe()
            yield self._place(node)
        assert self._probed is not None
        if self._probed.topology.file is not self._file:  # the doctor has read another one since
            yield self._place(self._probed.node)
        if begins:  # record what the doctor reads too
            self.examine()
        reading = self._watch.read()
        live = self._live.sample(self._watch.host, self._probed.node, reading)
        if self._recorder is not None:
            yield from self._end_moment(self._recorder)
        before, self._reading = self._reading, reading
        files = None if self._examination is None else self._examination.topology_files
        verdict = judge(self._probed.node, self._probed.topology, reading, before, files, self._served)
        yield Sampled(reading, with_jobs(verdict, live.processes, live.jobs), live.taken_at, live)

    @property
    def host(self) -> Host:
        """Return the node, or its recording while one runs."""
        return self._watch.host

    @property
    def ras(self) -> RasEvents:
        """Return the RAS events in the samples."""
        return self._live.ras

    def _place(self, node: Node) -> Probed:
        """Find the paths of a node again, with the topology file that NCCL uses."""
        topology = build(node, self._file)
        self._probed = Probed(node, topology, roles_of(node, topology))
        return self._probed

    def examine(self) -> Examination:
        """Examine the node; rising counters are compared with the previous examination."""
        node = self._probed.node if self._probed is not None else None
        live = self._live.latest
        self._examination = examine_with_jobs(self._watch.host, node, self._examination, live)
        file = self._examination.topology.file
        if file != self._file:
            self._file = file
        return self._examination

    def release(self) -> None:
        """Release what keeps the NVIDIA driver from being unloaded, until the next reading."""
        if isinstance(self._host, LocalHost):
            self._host.release()

    # Recording

    def toggle_recording(self) -> None:
        """Start recording with the next reading, or stop; may be called from any thread."""
        self._record = not self._record

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
            platform = self._probed.node.platform if self._probed else None
            self._recorder = Recorder(self._host, default_path(platform, self._host.wall_clock()))
        except RecordingError as error:
            self._record = False
            return RecordingEnded(str(error), failed=True)
        self._watch.host = self._recorder.host
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
        self._watch.host, self._recorder, self._record = self._host, None, False
        yield ended
