"""Reads a node now, and records it on demand with the readings that are taken anyway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from probes.host.local import LocalHost
from probes.host.protocol import Host
from probes.snapshot.nic_roles import roles_of
from probes.snapshot.verdict import judge
from probes.snapshot.watch import Watch
from probes.topology.paths import build
from tui.runtime.sampler import Probed, RecordingEnded, RecordingState, Report, Sampled

if TYPE_CHECKING:  # what recording and the doctor need is loaded when they begin
    from probes.snapshot.examination import Examination
    from probes.snapshot.rates import Reading
    from tui.runtime.recorder import Recorded, Recorder


class LiveSource:
    """A source of readings; all of it runs in the sampler's thread but what says otherwise."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._watch = Watch(host)
        self._probed: Probed | None = None
        self._reading: Reading | None = None
        self._examination: Examination | None = None
        self._recorder: Recorder | None = None
        self._record = False

    def take(self, probe: bool) -> Iterator[Report]:
        """One reading; before it a probe of the whole node where that has changed or `probe` asks for it."""
        failed = self._begin() if self._record and self._recorder is None else None
        if failed is not None:
            yield failed
        # A recording begins with the whole node.
        begins = self._recorder is not None and not self._recorder.moments
        node = self._watch.probe(probe or begins)
        if node is not None:
            if self._recorder is not None:
                self._recorder.host.note_probe()
            topology = build(node)
            self._probed = Probed(node, topology, roles_of(node, topology))
            yield self._probed
        assert self._probed is not None
        if begins:  # what the doctor asks is recorded too
            self.examine()
        reading = self._watch.read()
        if self._recorder is not None:
            yield from self._end_moment(self._recorder)
        before, self._reading = self._reading, reading
        files = None if self._examination is None else self._examination.topology_files
        verdict = judge(self._probed.node, self._probed.topology, reading, before, files)
        yield Sampled(reading, verdict, self._host.wall_clock())

    def examine(self) -> Examination:
        """All that the doctor looks at; what rises is judged against the examination before."""
        from probes.snapshot.examination import examine

        node = self._probed.node if self._probed is not None else None
        self._examination = examine(self._watch.host, node, self._examination)
        return self._examination

    def release(self) -> None:
        """Gives back what keeps the NVIDIA driver from being unloaded; the next reading takes it again."""
        if isinstance(self._host, LocalHost):
            self._host.release()

    # Recording

    def toggle_recording(self) -> None:
        """Begins a recording with the next reading, or ends the one under way; from any thread."""
        self._record = not self._record

    def close(self) -> Recorded | None:
        """Ends a recording under way, from any thread; RecordingError where its file cannot be written."""
        recorder = self._recorder
        if recorder is None:
            return None
        if not recorder.moments:
            recorder.drop()
            return None
        return recorder.finish()

    def _begin(self) -> RecordingEnded | None:
        """Has the host recorded from now on; why not, where it cannot be."""
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
        """Writes what was answered, and ends the recording where it is to end."""
        from probes.recording.format import RecordingError

        try:
            recorder.host.end_moment()
            if self._record and not recorder.is_full:
                yield RecordingState(recorder.moments, recorder.size_bytes)
                return
            why = "It is as long as a recording may be. " if recorder.is_full else ""
            recorded = recorder.finish()
            ended = RecordingEnded(f"{why}Recorded {recorded}. {recorded.privacy() if recorded else ''}")
        except RecordingError as error:
            recorder.drop()
            ended = RecordingEnded(str(error), failed=True)
        self._watch.host, self._recorder, self._record = self._host, None, False
        yield ended
