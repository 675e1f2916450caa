"""A sample change for each recipe of CONTRIBUTING.md. tests/test_guide_recipes.py makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = "tests/tui/__snapshots__/"
PUBLISHED = ("-m", "tests.tui.commands.published_schemas")


@dataclass(frozen=True)
class Change:
    """A text that goes after the first `after` or before the last `before` of a file, else to its end."""

    path: str
    text: str
    before: str = ""
    after: str = ""

    def apply(self, root: Path) -> None:
        file = root / self.path
        content = file.read_text(encoding="utf-8") if file.exists() else ""
        mark = self.before or self.after
        assert mark in content, f"{self.path} has no {mark!r}: correct {__file__}"
        start, end = content, ""
        if self.before:
            start, _, end = content.rpartition(mark)
            end = mark + end
        elif self.after:
            start, _, end = content.partition(mark)
            start += mark
        file.write_text(f"{start}{self.text}{end}", encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    """A recipe of CONTRIBUTING.md with a sample."""

    changes: tuple[Change, ...]
    tests: tuple[str, ...]  # arguments of pytest: what passes with all changes
    forgotten: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Path that is left out → the test that fails, and what its message says."""
    commands: tuple[tuple[str, ...], ...] = ()  # of Python, which write files
    written: tuple[str, ...] = ()  # by the commands
    pictures: str = ""  # a test of tests/tui/test_snapshots.py that has another or no picture now
    others: tuple[str, ...] = ()  # paths that the recipe names for cases that the sample has not

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that the sample touches."""
        changed = dict.fromkeys(change.path for change in self.changes)
        return (*changed, *self.written, *([PICTURES] if self.pictures else []))


CHECK = Recipe(
    (
        Change(
            "probes/checks/nic/port_state.py",
            '''

@AREA.note("sample-port-without-lid")
def sample_port_without_lid(examination: Examination) -> Outcome:
    """Find active InfiniBand ports whose LID is 0."""
    ports = [port for port in need_ports(examination) if port.facts.link_layer == "InfiniBand"]
    for port in ports:
        if need(port.facts.lid, "the port's LID") == 0 and port.facts.state == "ACTIVE":
            return found("The subnet manager gave it none.", Evidence(f"{port.path}/lid", "0x0"))
    return passed(*first_n(_state(port) for port in ports), Evidence("/sys/class/infiniband", "read"))
''',
        ),
        Change(
            "probes/checks/nic/texts.toml",
            """
[sample-port-without-lid]
title = "An InfiniBand port has no LID"
source = "opensm(8)"
ok = "Every InfiniBand port has a LID"
impact = "No other node can reach the port."
""",
        ),
        Change(
            "probes/simulation/faults/nic.toml",
            """
[sample-port-without-lid]
summary = "A port (mlx5_2) has no LID"
port.mlx5_2 = {lid = "0x0"}
""",
        ),
        Change(
            "tests/probes/checks/nic/test_port_state.py",
            """

def test_sample_a_port_without_a_lid() -> None:
    without = with_ports(HGX, lambda port: replace(port, lid=0), "mlx5_0")
    assert status("sample-port-without-lid", without) is Status.FOUND
    assert status("sample-port-without-lid", HGX) is Status.PASSED
""",
        ),
    ),
    (
        "tests/probes/checks/test_faults.py",
        "tests/probes/checks/test_registry.py",
        "tests/probes/checks/nic/test_port_state.py",
        "-k",
        "sample or every_check or left_over or lost or names or (healthy and hgx-h100)",
    ),
    {
        "probes/checks/nic/port_state.py": (
            "tests/probes/checks/test_faults.py::test_every_check_has_a_fault",
            "no check has the id ['sample-port-without-lid'], which a fault finds",
        ),
        "probes/checks/nic/texts.toml": (
            "tests/probes/checks/test_registry.py::test_every_check_has_texts_and_no_text_is_left_over",
            "texts.toml beside the check does not have ['sample-port-without-lid']",
        ),
        "probes/simulation/faults/nic.toml": (
            "tests/probes/checks/test_faults.py::test_every_check_has_a_fault",
            "add a fault to probes/simulation/faults/ that finds",
        ),
    },
    pictures="test_the_doctor[80x24]",
    others=("probes/checks/registry.py",),
)
FAULT = Recipe(
    (
        Change(
            "probes/simulation/faults/nic.toml",
            """
[sample-port-polling]
summary = "The port of mlx5_4 looks for its peer"
finds = ["ib-port-not-active"]
port.mlx5_4 = {state = "1: DOWN", phys_state = "2: Polling"}
no_carrier = "mlx5_4"
""",
        ),
        Change(
            "tests/probes/checks/nic/test_port_state.py",
            """

def test_sample_a_port_that_polls() -> None:
    polling = examination_of("hgx-h100+sample-port-polling")
    assert status("ib-port-not-active", polling) is Status.FOUND
""",
        ),
    ),
    (
        "tests/probes/checks/test_faults.py",
        "tests/probes/checks/nic/test_port_state.py",
        "-k",
        "sample or lost or names",
    ),
    {
        "probes/simulation/faults/nic.toml": (
            "tests/probes/checks/nic/test_port_state.py::test_sample_a_port_that_polls",
            "sample-port-polling",
        )
    },
    others=tuple(f"probes/simulation/faults/{name}.py" for name in ("fault", "live", "nic")),
)
PROBE = Recipe(
    (
        Change(
            "probes/facts/system/sample.py",
            '''"""A sample: the release of a package."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe
from probes.host.protocol import Host

PATH = "/srv/sample/release"


@frozen
class SampleFacts:
    """The package's release."""

    release: Maybe[str]


def probe(host: Host) -> SampleFacts:
    """Read the release."""
    return SampleFacts(host.read(PATH))
''',
        ),
        Change(
            "probes/snapshot/examination.py",
            "from probes.facts.system import sample\nfrom probes.facts.system.sample import SampleFacts\n",
            before="from probes.host.nvml ",
        ),
        Change(
            "probes/snapshot/examination.py",
            '    sample: Maybe[SampleFacts] = _probed("sample", lambda run: sample.probe(run.host))\n',
            before="    # From an earlier examination of the same node",
        ),
        Change(
            "probes/recording/redaction/identifiers.py",
            '    Row("/srv/sample/*", _WORDS),\n',
            before='    Row("/.dockerenv", None),\n',
        ),
        Change("probes/recording/redaction/words.txt", "sample\n", after="[paths]\n"),
        Change(
            "tests/probes/facts/system/test_sample.py",
            '''"""The release of a package."""

from pathlib import Path

from probes.facts.system.sample import PATH, probe
from probes.host.machine.local import LocalHost
from tests.support.trees import write


def test_the_release_is_read(tmp_path: Path) -> None:
    write(tmp_path, PATH, "1.2\\n")
    assert probe(LocalHost(str(tmp_path))).release == "1.2"
''',
        ),
    ),
    (
        "tests/probes/facts/system/test_sample.py",
        "tests/probes/snapshot/test_node_reader.py",
        "tests/probes/recording/test_redaction_rules.py",
        "tests/probes/recording/test_redaction_checks.py::test_each_path_that_gdrtop_reads_has_a_row",
    ),
    {
        "probes/snapshot/examination.py": (
            "tests/test_architecture.py::test_every_file_is_imported",
            "nothing imports ['probes/facts/system/sample.py']",
        ),
        "probes/recording/redaction/identifiers.py": (
            "tests/probes/recording/test_redaction_checks.py::test_each_path_that_gdrtop_reads_has_a_row",
            "add a row to FILES in probes/recording/redaction/identifiers.py for ['/srv/sample/release']",
        ),
        "probes/recording/redaction/words.txt": (
            "tests/probes/recording/test_redaction_rules.py::test_every_path_in_the_table_is_kept",
            "['sample']",
        ),
    },
    others=(
        "probes/facts/node.py",
        "probes/facts/system/limits.py",
        "tests/probes/facts/system/test_limits.py",
    ),
)
REDACTION = Recipe(
    (
        Change(
            "probes/recording/redaction/identifiers.py",
            '    Row("/opt/sample/conf", of_lines("verbose=")),\n',
            before='    Row("/.dockerenv", None),\n',
        ),
        Change("probes/recording/redaction/words.txt", "sample\n", after="[paths]\n"),
        Change("probes/recording/redaction/words.txt", "verbose\n", after="[settings]\n"),
        Change(
            "tests/probes/recording/test_redaction_rules.py",
            """

def test_sample_one_line_is_kept() -> None:
    question = Question("file", ("/opt/sample/conf",))
    answers: dict[Question, object] = {question: b"verbose=1\\nowner=alice\\n"}
    moment = Identifiers(redact=True).apply(Moment(0, 0.0, True, (), answers))
    assert moment.answers[question] == b"verbose=1\\n\\n"
""",
        ),
    ),
    ("tests/probes/recording/test_redaction_rules.py",),
    {
        "probes/recording/redaction/identifiers.py": (
            "tests/probes/recording/test_redaction_rules.py::test_sample_one_line_is_kept",
            "KeyError",
        ),
        "probes/recording/redaction/words.txt": (
            "tests/probes/recording/test_redaction_rules.py::test_every_path_in_the_table_is_kept",
            "['sample']",
        ),
    },
    others=(
        "probes/recording/redaction/basic_rules.py",
        "probes/recording/redaction/forms.txt",
        "tests/probes/recording/test_redaction_checks.py",
    ),
)
SETUP_STEP = Recipe(
    (
        Change(
            "probes/setup/steps/steps.toml",
            """[[step]]
id = "sample-cgroup"
title = "Raise the limit of RDMA objects"
why = "A control group can limit the RDMA objects of a job."
done = "no control group limits RDMA"
after = ["nic-driver"]
checks = ["rdma-cgroup-limit"]

""",
            before='[[step]]\nid = "memlock"',
        ),
        Change(
            "tests/probes/setup/steps/test_guide.py",
            """

def test_sample_a_limit_of_rdma_objects_is_a_step() -> None:
    assert state_of(guide_of("hgx-h100"), "sample-cgroup")[0] is StepState.DONE
    assert state_of(guide_of("hgx-h100+rdma-cgroup-limit"), "sample-cgroup")[0] is StepState.TO_DO
""",
        ),
    ),
    ("tests/probes/setup/steps/test_step_list.py", "tests/probes/setup/steps/test_guide.py"),
    {
        "probes/setup/steps/steps.toml": (
            "tests/probes/setup/steps/test_guide.py::test_sample_a_limit_of_rdma_objects_is_a_step",
            "sample-cgroup",
        )
    },
    pictures="test_setup[steps-80x24]",
    others=(
        *("probes/setup/steps/step_list.py", "probes/setup/steps/checked.py", "probes/setup/step.py"),
        "probes/setup/steps/measured.py",
    ),
)
EVENT = Recipe(
    (
        Change(
            "probes/live/model/sample.py",
            '    SAMPLE = "sample"  # the clients of NICs in the kernel changed\n',
            before="    SAMPLES_MISSED =",
        ),
        Change(
            "probes/live/model/explanations.toml",
            'sample = "A client in the kernel came or went."\n',
            before="samples-missed =",
        ),
        Change(
            "probes/live/events/detectors.py",
            '''

class SampleEvents:
    """Compare the number of clients in the kernel."""

    def __init__(self) -> None:
        self._count: int | None = None

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return that there are more or fewer clients."""
        before, self._count = self._count, len(sample.kernel_clients)
        if before in (None, self._count):
            return []
        text = f"{before} clients became {self._count}"
        return [explained(sample.taken_at, EventKind.SAMPLE, Severity.NOTE, "kernel", text)]
''',
        ),
        Change(
            "probes/live/events/detectors.py",
            '            "clients in the kernel": SampleEvents().update,\n',
            before='            "processes": self._processes.update,\n',
        ),
        Change(
            "tests/probes/live/events/test_node.py",
            """

def test_sample_a_client_in_the_kernel_is_an_event() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (event,) = node.see(a_sample(kernel_clients={"mlx5_0": ("sample",)}), 1)
    assert event.text == "0 clients became 1"
""",
        ),
    ),
    (
        "tests/probes/live/events/test_node.py",
        "tests/tui/commands/test_schema.py",
        "-k",
        "sample or published or explained or kind",
    ),
    {
        "tests/tui/commands/published/live-2.txt": (
            "tests/tui/commands/test_schema.py",
            "live has new lines: run `.venv/bin/python -m tests.tui.commands.published_schemas`",
        ),
        "probes/live/model/explanations.toml": (
            "tests/probes/live/events/test_node.py::test_sample_a_client_in_the_kernel_is_an_event",
            "not enough values to unpack",
        ),
        "probes/live/events/detectors.py": (
            "tests/probes/live/events/test_node.py::test_sample_a_client_in_the_kernel_is_an_event",
            "not enough values to unpack",
        ),
    },
    commands=(PUBLISHED,),
    written=("tests/tui/commands/published/live-2.txt", "tests/tui/commands/published/watch-2.txt"),
    others=("tui/runtime/node_monitor.py",),
)
MESSAGE = Recipe(
    (
        Change(
            "probes/messages/nccl.toml",
            """
[[message]]
id = "sample-plugin"
forms = ['Sample plugin {plugin} gave up']
samples = ['Sample plugin abc gave up']
weight = "critical"
title = "The plugin {plugin} gave up"
cause = "The plugin does not know this NIC."
fix = "Remove NCCL_NET_PLUGIN."
source = "sample/plugin main.c"
""",
            after='program = "NCCL"\n',
        ),
        Change(
            "tests/probes/nccl/log/test_versions.py",
            """        ("Sample plugin abc gave up", "The plugin abc gave up"),
""",
            before="""        ("something new", "NCCL warning"),
""",
        ),
    ),
    ("tests/probes/messages/test_catalogue.py", "tests/probes/nccl/log/test_versions.py"),
    {
        "probes/messages/nccl.toml": (
            "tests/probes/nccl/log/test_versions.py::test_a_warning_has_a_title",
            "The plugin abc gave up",
        )
    },
    others=(
        "probes/messages/",
        "probes/messages/form.py",
        "probes/messages/message.py",
        "probes/messages/codes.toml",
        "probes/messages/calls.toml",
        "probes/messages/catalogue.py",
        "probes/nccl/log/grammar.py",
    ),
)
COUNTER = Recipe(
    (
        Change(
            "probes/facts/rdma/port_counters.txt",
            "HARDWARE sample_resent - RETRANSMITS lost-and-resent\n",
            before="# sw/rxe/rxe_hw_counters.c",
        ),
        Change(
            "probes/simulation/node/devices/ports.py", '    "sample_resent",\n', after="HW_COUNTERS = (\n"
        ),
        Change(
            "tests/probes/live/events/test_ports.py",
            """

def test_sample_packets_that_were_sent_again() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (rising,) = node.see(counting(sample_resent=50.0), 10)
    assert rising.text.startswith("mlx5_3 retransmits packets (sample_resent")
""",
        ),
    ),
    (
        "tests/probes/facts/rdma/test_counters.py",
        "tests/probes/live/events/test_ports.py",
        "tests/probes/live/test_ports.py",
    ),
    {"probes/facts/rdma/port_counters.txt": ("tests/probes/facts/rdma/test_counters.py", "sample_resent")},
    others=("probes/facts/rdma/port_health.py", "probes/live/model/explanations.toml"),
)
QUESTION = Recipe(
    (
        Change(
            "probes/host/protocol.py",
            '''    def sample_level(self) -> Maybe[int]:
        """Return the sample level."""
        return _answer(self, "sample_level")

''',
            before="    def environment(self",
        ),
        Change("probes/recording/recording_host.py", '"sample_level", ', after='**dict.fromkeys(("nvml", '),
        Change(
            "probes/recording/format.py", '    "sample_level": int,\n', before='    "environment": str,\n'
        ),
        Change("probes/recording/format.py", '"sample_level", ', after="_WITHOUT_OBJECT = ("),
        Change(
            "probes/host/machine/local.py",
            '''    def sample_level(self) -> Maybe[int]:
        """Return the sample level; a directory tree has none."""
        return super().sample_level() if self._root else 1

''',
            before="    def environment(self",
        ),
        Change(
            "probes/simulation/host.py",
            '''    def sample_level(self) -> Maybe[int]:
        """Return the sample level."""
        return 2

''',
            before="    def kernel_messages(self",
        ),
        Change(
            "tests/probes/recording/test_recording_host.py",
            """

def test_sample_the_level_is_recorded() -> None:
    moments: list[Moment] = []
    recorder = RecordingHost(SimulatedHost("hgx-h100"), moments.append)
    recorder.sample_level()
    recorder.end_moment()
    assert ReplayHost(read(archive_of(moments))).sample_level() == 2
""",
        ),
    ),
    (
        "tests/probes/host/test_host_base.py",
        "tests/probes/recording/test_recording_host.py",
        "-k",
        "sample or knows_nothing or passes_on",
    ),
    {
        "probes/recording/recording_host.py": (
            "tests/probes/host/test_host_base.py::test_a_recording_host_passes_on_every_question",
            "sample_level",
        ),
        "probes/recording/format.py": (
            "tests/probes/recording/test_recording_host.py::test_sample_the_level_is_recorded",
            "sample_level",
        ),
    },
    others=("probes/host/machine/", "probes/setup/twin/host.py", "probes/recording/redaction/identifiers.py"),
)
MANIFEST = Recipe(
    (
        Change(
            "probes/setup/manifests/sample.py",
            '''"""A sample: the name of the path, for scripts."""

from __future__ import annotations

from probes.setup.manifests.manifest_text import head
from probes.setup.manifests.manifest_text import ManifestRequest, Refused


def sample(request: ManifestRequest) -> str | Refused:
    """Return the path's name."""
    lines = head(request, "sample")
    return "\\n".join([*lines, f"path={request.path.name}"]) + "\\n"
''',
        ),
        Change(
            "probes/setup/manifests/catalogue.py",
            "from probes.setup.manifests.sample import sample\n",
            before="from probes.setup.manifests.slurm",
        ),
        Change(
            "probes/setup/manifests/catalogue.py",
            '    "sample": Manifest("scripts: the name of the path", sample),\n',
            after='for peermem, it loads the module", slurm_prolog\n    ),\n',
        ),
        Change(
            "probes/setup/manifests/manifests.toml",
            '[sample]\ntitle = "The path, for scripts"\n\n',
            before="[comment]",
        ),
        Change(
            "tui/manual/manifests.md", "| `sample` | the name of the path |\n", before="\nNothing is applied"
        ),
        Change(
            "tests/probes/setup/manifests/test_manifests.py",
            """

def test_sample_the_path_has_a_name() -> None:
    assert parse("sample", text_of("sample", request_of(HGX))) == ["path=DMABUF"]
""",
        ),
    ),
    (
        "tests/probes/setup/manifests/test_manifests.py",
        "tests/test_architecture.py",
        "tests/tui/test_manual.py",
        "-k",
        "sample or kind or imported",
    ),
    {
        "probes/setup/manifests/catalogue.py": (
            "tests/test_architecture.py::test_every_file_is_imported",
            "nothing imports ['probes/setup/manifests/sample.py']",
        ),
        "tui/manual/manifests.md": (
            "tests/tui/test_manual.py::test_every_kind_of_manifest_is_in_the_manual",
            "['sample']",
        ),
    },
    others=("tests/support/parsed_manifests.py", "tests/support/manifest_schemas.py"),
)
VARIABLE = Recipe(
    (
        Change(
            "probes/nccl/variables/variables.toml",
            """[NCCL_SAMPLE_RAILS]
meaning = "how many rails a sample uses"
kind = "number"
since = "2.28"
defaults = { "2.28" = "1" }
limits = [1, 8]

""",
            before="[NCCL_IB_HCA]\n",
        ),
        Change("probes/recording/redaction/words.txt", "NCCL_SAMPLE_RAILS\n", after="[variables]\n"),
        Change(
            "tests/probes/nccl/test_variables.py",
            """        ("NCCL_SAMPLE_RAILS", "2.27", ""),
        ("NCCL_SAMPLE_RAILS", "2.28", "1"),
""",
            before="""        ("NCCL_NVLS_ENABLE", "2.17.1", "1"),
""",
        ),
    ),
    ("tests/probes/nccl/test_variables.py",),
    {
        "probes/nccl/variables/variables.toml": (
            "tests/probes/nccl/test_variables.py::test_defaults_follow_the_version",
            "NCCL_SAMPLE_RAILS",
        ),
        "probes/recording/redaction/words.txt": (
            "tests/probes/nccl/test_variables.py::test_a_redacted_recording_keeps_the_variables_of_the_catalogue",
            "['NCCL_SAMPLE_RAILS']",
        ),
    },
    others=(
        *("probes/nccl/variables/catalogue.py", "probes/nccl/variables/parameters.txt"),
        "tests/probes/nccl/parameters_of_tags.py",
    ),
)
NODE = Recipe(
    (
        Change(
            "probes/simulation/nodes/sample.toml",
            (ROOT / "probes/simulation/nodes/hgx-b200.toml")
            .read_text(encoding="utf-8")
            .replace('hostname = "hgx-b200"', 'hostname = "sample"'),
        ),
        Change(
            "probes/simulation/node/model/names.py",
            '    "sample",\n',
            after='    *("aws-p5", "slingshot"),\n',
        ),
        Change("tui/manual/simulation.md", "`sample`, ", after="The nodes are `hgx-h100`, "),
        Change(
            "tests/probes/simulation/test_simulated_nodes.py",
            '    "sample": (8, 8, 2, 0, State.READY, 8),\n',
            after="EXPECTED = {\n",
        ),
        Change(
            "tests/probes/setup/test_situation.py",
            '    "sample": (Family.DEBIAN, BootLoader.GRUB, NicStack.INBOX, False, None),\n',
            after="EXPECTED = {\n",
        ),
    ),
    (
        "-m",
        "",
        "tests/probes/simulation/test_simulated_nodes.py",
        "tests/probes/setup/test_situation.py",
        "tests/probes/checks/test_faults.py",
        "tests/tui/test_manual.py",
        "-k",
        "sample or every_described or every_simulated",
    ),
    {
        "probes/simulation/node/model/names.py": (
            "tests/probes/simulation/test_simulated_nodes.py::test_every_described_node_is_listed",
            "add ['sample'] to SIMULATED_NAMES in probes/simulation/node/model/names.py",
        ),
        "probes/simulation/nodes/sample.toml": (
            "tests/probes/simulation/test_simulated_nodes.py::test_every_described_node_is_listed",
            "probes/simulation/nodes has no TOML file of ['sample']",
        ),
        "tests/probes/simulation/test_simulated_nodes.py": (
            "tests/probes/simulation/test_simulated_nodes.py::test_every_described_node_is_listed",
            "add what ['sample'] must show to EXPECTED in this file",
        ),
        "tests/probes/setup/test_situation.py": (
            "tests/probes/setup/test_situation.py::test_every_simulated_node_has_its_situation",
            "['sample']",
        ),
        "tui/manual/simulation.md": (
            "tests/tui/test_manual.py",
            "add ['sample'] to tui/manual/simulation.md",
        ),
    },
    others=("tests/probes/checks/test_faults.py", "tests/support/tiers.py"),
)
PAGE = Recipe(
    (
        Change("tui/manual/sample.md", "# A sample\n\n`gdrtop` has a sample.\n"),
        Change("tui/manual/pages.toml", 'sample = "What is a sample?"\n', before="install = "),
    ),
    ("tests/tui/test_manual.py",),
    {
        "tui/manual/sample.md": ("tests/tui/test_manual.py::test_every_page_is_a_subject", "'sample'"),
        "tui/manual/pages.toml": ("tests/tui/test_manual.py::test_every_page_is_a_subject", "'sample'"),
    },
    others=("tui/screens/help.toml",),
)
COMBINATION = Recipe(
    (
        Change(
            "probes/checks/system/combinations.toml",
            """[sample]
components = "Sample 1.0 on samples"
symptom = "Nothing works."
cure = "Use Sample 1.1"
source = "https://example.com/sample"

""",
            before="[r595-efa-grace]\n",
        ),
        Change(
            "probes/checks/system/combinations.py",
            '    "sample": sample,\n',
            after="_SEEN: dict[str, Seen] = {\n",
        ),
        Change(
            "probes/checks/system/combinations.py",
            '''def sample(examination: Examination) -> Iterator[Evidence]:
    """Yield jobs with version 1.0.0 of the sample."""
    for _, _, evidence in _nccl_between(examination, (1, 0, 0), (1, 0, 1)):
        yield evidence


''',
            before="def small_mtu_of_gin(",
        ),
        Change(
            "tui/manual/versions.md",
            "| Sample 1.0 on samples | Nothing works. Use Sample 1.1. Found by `known-bad-combination`. "
            "<https://example.com/sample> |\n",
            after="|---|---|\n",
        ),
    ),
    ("tests/probes/checks/system/test_combinations.py::test_each_row_is_complete_and_in_the_manual",),
    {
        "tui/manual/versions.md": (
            "tests/probes/checks/system/test_combinations.py::test_each_row_is_complete_and_in_the_manual",
            "add to tui/manual/versions.md: | Sample 1.0",
        )
    },
)
COLUMN = Recipe(
    (
        Change(
            "widgets/live/ranks.py",
            '        Column("minor", cells(lambda process: Run(str(process.pid % 10))), 11),\n',
            before='        *([Column("bus GB/s"',
        ),
        Change(
            "widgets/live/ranks.py",
            '        "minor": lambda process: float(process.pid % 10),\n',
            before='        "bus GB/s": lambda process',
        ),
        Change(
            "widgets/live/columns.toml",
            '    { title = "minor", letter = "f", meaning = "the last digit of its process ID" },\n',
            before='    { title = "bus GB/s"',
        ),
        Change("tui/manual/live.md", "| `minor` | the last digit of the pid |\n", before="| `CNP/s` |"),
    ),
    (
        "tests/tui/test_manual.py",
        "tests/widgets/live/test_columns.py",
        "tests/widgets/live/test_order.py",
        "tests/widgets/test_live_panes.py",
    ),
    {
        "widgets/live/columns.toml": (
            "tests/widgets/live/test_columns.py",
            "name each column in widgets/live/columns.toml",
        ),
        "tui/manual/live.md": ("tests/tui/test_manual.py", "minor"),
    },
    pictures="test_live[200x60]",
    others=("widgets/live/", "probes/live/model/sample.py"),
)
SCREEN = Recipe(
    (
        Change(
            "tui/screens/sample.py",
            '''"""A sample: one line."""

from __future__ import annotations

from textual.app import ComposeResult

from tui.screens.key_footer import KeyFooter
from tui.screens.keys import leave_keys
from tui.screens.list_screen import PanesScreen, static_view
from widgets.base.lines import line
from widgets.base.lines_view import LinesView


class SampleScreen(PanesScreen):
    """One line."""

    BINDINGS = [*leave_keys("sample")]  # noqa: RUF012 - Textual's own type

    def compose(self) -> ComposeResult:
        """Compose one pane."""
        yield static_view("summary")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Draw it."""
        self.query_one("#summary", LinesView).show([line("A sample.")])
''',
        ),
        Change(
            "tui/screens/keys.toml", 'sample = ["A", "A", "Sample", "Sample: one line"]\n', before="pane = "
        ),
        Change(
            "tui/screens/help.toml",
            '[SampleScreen]\ntitle = "SAMPLE"\npurpose = "One line."\nkeys = ["quit"]\n\n',
            before="[HistoryScreen]",
        ),
        Change(
            "tui/app.py", '        bind("sample", "sample", show=False),\n', before='        bind("doctor", '
        ),
        Change(
            "tui/app.py",
            '''    def action_sample(self) -> None:
        """Show the sample."""
        from tui.screens.sample import SampleScreen

        self._shared.show(SampleScreen, SampleScreen)

''',
            before="    def action_command_palette",
        ),
        Change("tui/controllers/palette.py", '"sample", ', after='"bandwidth", "prove", '),
        Change("tui/manual/config.md", "`sample`, ", after="These names can be used: "),
        Change(
            "tests/tui/test_snapshots.py",
            """

@pytest.mark.parametrize("size", SMALL_OR_SLOW)
def test_sample(snap_compare: Any, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    assert snap_compare(app, terminal_size=size, run_before=after(clock, "A"))
""",
        ),
    ),
    (
        "tests/tui/screens/test_keys.py",
        "tests/tui/screens/test_own_keys.py",
        "-k",
        "every or means or twice or footer",
    ),
    {
        "tui/manual/config.md": ("tests/tui/screens/test_own_keys.py", "'sample'"),
        "tui/screens/keys.toml": ("tests/tui/screens/test_keys.py", "KeyError: 'sample'"),
        "tui/app.py": (
            "tests/test_architecture.py::test_every_file_is_imported",
            "nothing imports ['tui/screens/sample.py']",
        ),
        "tui/screens/help.toml": (
            "tests/tui/screens/test_keys.py::test_every_screen_has_its_keys_in_the_help",
            "add ['SampleScreen'] to tui/screens/help.toml",
        ),
    },
    pictures="test_sample[80x24]",
    others=("tui/screens/history.py", "tui/screens/bandwidth_run/"),
)
PANEL = Recipe(
    (
        Change(
            "widgets/node/sample.py",
            '''"""A sample: how many GPUs there are."""

from __future__ import annotations

from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from widgets.base.lines import Line, Run, fit


def draw(node: Node, width: int) -> list[Line]:
    """Draw the number of GPUs."""
    count = str(len(node.gpus.gpus)) if isinstance(node.gpus, GpuFacts) else "?"
    return [fit((Run(f"{count} GPUs"),), width)]
''',
        ),
        Change(
            "tui/screens/overview/panels.py",
            ", sample",
            after="from widgets.node import gpudirect, matrix, modules, nic_detail",
        ),
        Change(
            "tui/screens/overview/panels.py",
            '            case "sample":\n                return sample.draw(node, width)\n',
            before='            case "path":',
        ),
        Change(
            "tui/screens/own_settings.py",
            ', "sample"',
            after='    "right": ("jobs", "path", "gpudirect", "modules", "traffic"',
        ),
        Change(
            "tui/screens/overview/state.py",
            '            "sample": 1,\n',
            before='            "traffic": len(traffic.TOTALS) + (right - 2 >= traffic.ROOM_FOR_SCALE),',
        ),
        Change(
            "tui/screens/overview/panel_screen.py",
            '    "sample": "Sample",\n',
            before='    "path": "Path",\n',
        ),
        Change("tui/manual/dashboard.md", "- a sample\n", after="kernel modules, and the traffic\n"),
        Change(
            "tests/tui/screens/overview/test_layout.py",
            '"sample", ',
            after='    first = {"findings", "topology", ',
        ),
        Change(
            "tests/widgets/test_drawings.py",
            """

def test_sample_the_gpus_are_counted() -> None:
    from widgets.node import sample

    assert plain(sample.draw(probe_node(SimulatedHost("hgx-h100")), 30)[0]).strip() == "8 GPUs"
""",
        ),
    ),
    (
        "tests/tui/screens/overview/test_layout.py",
        "tests/widgets/test_drawings.py",
        "-k",
        "sample or every_panel or first_screen",
    ),
    {
        "tests/tui/screens/overview/test_layout.py": (
            "tests/tui/screens/overview/test_layout.py",
            "'sample']) == {",
        ),
        "tui/screens/overview/panels.py": (
            "tests/tui/screens/overview/test_layout.py::test_every_panel_has_its_place_rows_and_drawing",
            "add a case to Panels.draw in tui/screens/overview/panels.py",
        ),
        "tui/screens/own_settings.py": (
            "tests/tui/screens/overview/test_layout.py::test_every_panel_has_its_place_rows_and_drawing",
            "PANELS in panel_screen.py and PLACES in own_settings.py",
        ),
        "tui/screens/overview/state.py": (
            "tests/tui/screens/overview/test_layout.py::test_every_panel_has_its_place_rows_and_drawing",
            "KeyError: 'sample'",
        ),
        "tui/screens/overview/panel_screen.py": (
            "tests/tui/screens/overview/test_layout.py::test_every_panel_has_its_place_rows_and_drawing",
            "PANELS in panel_screen.py and PLACES in own_settings.py",
        ),
    },
    pictures="test_overview[hgx-h100-120x40]",
)
TOOL = Recipe(
    (
        Change(
            "probes/bandwidth/tools/sample.py",
            '''"""A sample tool, which prints one figure."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.command import Command, Refused, command
from probes.bandwidth.model.planned_series import Purpose
from probes.bandwidth.model.request import Request
from probes.bandwidth.model.samples import Sample, clean_line, parse_number
from probes.bandwidth.tools.failures import Output, failures_in
from probes.bandwidth.tools.tool import LocalSettings, LocalTool
from probes.base.frozen import frozen
from probes.facts.gpu.gpus import Gpu
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination


@frozen
class SampleSettings(LocalSettings):
    """No settings."""

    tool = "sample_bw"
    seconds = 1.0
    title = "sample_bw"

    def purpose(self, is_loopback: bool = False) -> Purpose:
        """Return what it shows."""
        return Purpose("a figure", "anything else")

    def command(self, tools: ToolFacts) -> Command | Refused:
        """Return the command."""
        return command(tools, (self.tool,), None, ())


class SampleOutput:
    """Reads its figure."""

    def feed(self, line: str) -> tuple[Output, ...]:
        """Return the figure, or a failure."""
        figure = parse_number(line.removeprefix("BW: "))
        if line.startswith("BW: ") and figure is not None:
            return (Sample(what="sample", raw=clean_line(line), gbps=figure),)
        return failures_in(line, TOOL.messages)


class SampleTool(LocalTool):
    """sample_bw."""

    def parser(self, program: str) -> SampleOutput:
        """Return a parser."""
        return SampleOutput()

    def settings(self, request: Request, gpus: Sequence[Gpu], numa_node: int | None) -> SampleSettings:
        """Return the settings."""
        return SampleSettings()

    def install_hint(self, examination: Examination) -> str:
        """Return where it comes from."""
        return "from its source"


TOOL = SampleTool()
''',
        ),
        Change(
            "probes/facts/system/tool_names.py",
            '    BenchProgram("sample_bw", "sample", "sample", "A sample", "measures nothing"),\n',
            before=")\nTOOL_OF",
        ),
        Change(
            "probes/simulation/bandwidth/sample.py",
            '''"""sample_bw on a simulated node."""

from __future__ import annotations

from probes.simulation.bandwidth.node_pair import ParsedCommand
from probes.simulation.bandwidth.node_pair import SimulatedNode
from probes.simulation.bandwidth.playback import SimulatedTest, ended


def start(node: SimulatedNode, command: ParsedCommand, at: float) -> SimulatedTest:
    """Print the figure at once."""
    return node.run(ended(at + 0.1, 0, "BW: 42"))
''',
        ),
        Change("probes/simulation/nodes/hgx-h100.toml", '"sample", ', after="tests = ["),
        Change("tui/manual/bandwidth.md", "| `sample` | a figure | the rest |\n", before="| `nvbandwidth` |"),
        Change(
            "tests/probes/bandwidth/tools/test_sample.py",
            '''"""The sample tool."""

from probes.bandwidth.model.samples import Sample
from probes.bandwidth.tools.sample import SampleOutput


def test_the_figure_is_read() -> None:
    (sample,) = SampleOutput().feed("BW: 42")
    assert isinstance(sample, Sample)
    assert sample.gbps == 42
''',
        ),
    ),
    (
        "-m",
        "",
        "tests/probes/bandwidth/tools/test_sample.py",
        "tests/tui/commands/bench/test_measuring.py",
        "tests/probes/simulation/bandwidth/test_any_words.py",
        "tests/probes/simulation/bandwidth/test_other_tools.py",
        "tests/tui/test_manual.py",
        "-k",
        "sample or list_has or nothing_crashes or is_simulated or benchmark",
    ),
    {
        "probes/bandwidth/tools/sample.py": (
            "tests/tui/commands/bench/test_measuring.py::test_the_list_has_every_tool",
            "No module named 'probes.bandwidth.tools.sample'",
        ),
        "probes/simulation/bandwidth/sample.py": (
            "tests/probes/simulation/bandwidth/test_other_tools.py::test_every_tool_is_simulated",
            "there is no probes/simulation/bandwidth/sample.py",
        ),
        "tui/manual/bandwidth.md": ("tests/tui/test_manual.py", "tui/manual/bandwidth.md: ['sample']"),
    },
    others=("probes/bandwidth/tools/gdrcopy.py",),
)
CONDITION = Recipe(
    (
        Change(
            "probes/snapshot/condition.py",
            'SAMPLE = "sample-client"\n',
            before="\n\n@frozen\nclass Condition:",
        ),
        Change(
            "probes/live/events/processes.py",
            """        for nic, clients in sample.kernel_clients.items():
            if "SMB" in clients:
                yield Condition(
                    check=SAMPLE,
                    subject=nic,
                    text=f"SMB uses {nic}",
                    since=sample.taken_at,
                    evidence=(Evidence(nic, "a queue pair of SMB"),),
                    devices=(nic,),
                )
""",
            before="        if not self._ended or isinstance(",
        ),
        Change(
            "probes/live/events/conditions.py",
            '        ((condition.SAMPLE,), "their states", map(_STATE, processes)),\n',
            before='        ((STOPPED,), "the states',
        ),
        Change(
            "probes/live/events/conditions.py",
            "from probes.snapshot import condition\n",
            before="from probes.snapshot.condition import ",
        ),
        Change(
            "probes/live/events/processes.py",
            "from probes.snapshot.condition import SAMPLE\n",
            before="from probes.snapshot.condition import ",
        ),
        Change(
            "probes/checks/live/jobs.py",
            """

# NICs that SMB uses.
AREA.warning("sample-client")(report_conditions("sample-client"))
""",
        ),
        Change(
            "probes/checks/live/texts.toml",
            """
[sample-client]
title = "SMB uses a NIC"
source = "A sample"
ok = "SMB uses no NIC"
impact = "None: it is a sample."
fix = "Remove the sample"
steps = [
    "# Remove it",
]
""",
        ),
        Change(
            "probes/simulation/faults/live.toml",
            """
[sample-smb]
summary = "After 15 s SMB uses a job's NIC"
shows = ["sample-client"]
does = "sample_smb"
""",
        ),
        Change(
            "probes/simulation/faults/live.py",
            """def _sample_smb(tree: Tree) -> None:
    for nic in used_nics(tree)[:1]:
        tree.plan(OPENED + 15.0, lambda tree: tree.kernel_clients.update({nic.name: "cifs"}))


""",
            before="FAULTS = tuple(",
        ),
        Change(
            "tests/support/simulated_jobs.py",
            '    "sample-smb": Told(),\n',
            before='    "two-jobs-two-users": Told(',
        ),
        Change(
            "tests/probes/live/test_simulated_jobs.py",
            """    if any("SMB" in clients for clients in last.kernel_clients.values()):
        return "sample-smb", None
""",
            before="    if any(process.role is Role.STORAGE",
        ),
        Change(
            "tests/tui/test_blind_diagnosis.py",
            '    "sample-smb": (15, lambda tree: {"SMB"}),\n',
            before='    "rank-behind": (live',
        ),
    ),
    (
        "tests/probes/live/test_watched_faults.py",
        "tests/probes/live/test_simulated_jobs.py",
        "tests/probes/live/events/test_conditions.py",
        "tests/probes/checks/test_faults.py",
        "tests/tui/test_blind_diagnosis.py",
        "-m",
        "",
        "-k",
        "sample or every_check or lost or names_in or figures or rounds or every_live",
    ),
    {
        "tests/tui/test_blind_diagnosis.py": (
            "tests/tui/test_blind_diagnosis.py::test_the_rounds_know_what_each_watched_fault_is_about",
            "add ['sample-smb'] to SUBJECTS in tests/tui/test_blind_diagnosis.py",
        ),
        "tests/support/simulated_jobs.py": (
            "tests/probes/live/test_simulated_jobs.py::test_every_live_fault_says_what_it_must_tell",
            "sample-smb",
        ),
        "probes/live/events/conditions.py": (
            "tests/probes/live/events/test_conditions.py",
            "add the figures of ['sample-client'] to _unread() in probes/live/events/conditions.py",
        ),
        "probes/checks/live/jobs.py": (
            "tests/probes/checks/test_faults.py::test_names_in_a_fault_exist",
            "probes/checks has no check ['sample-client']",
        ),
        "probes/checks/live/texts.toml": (
            "tests/probes/checks/test_registry.py::test_every_check_has_texts_and_no_text_is_left_over",
            "texts.toml beside the check does not have ['sample-client']",
        ),
        "probes/simulation/faults/live.toml": (
            "tests/probes/checks/test_faults.py::test_every_check_has_a_fault",
            "add a fault to probes/simulation/faults/ that finds",
        ),
    },
    others=("probes/checks/live/ports.py",),
)
METRIC = Recipe(
    (
        Change(
            "probes/metrics/metrics.toml",
            'gdrtop_sample_nics = "RDMA NICs of this node."\n',
            after="[gauge]\n",
        ),
        Change(
            "probes/metrics/metrics.py",
            '        _family("sample_nics", [({}, len(seen.examination.topology.nics))]),\n',
            after="        *_judged(seen),\n",
        ),
        Change(
            "tui/manual/metrics.md",
            "| `gdrtop_sample_nics` | RDMA NICs of this node |\n",
            before="| `gdrtop_path_info` |",
        ),
        Change(
            "tests/probes/metrics/test_metrics.py",
            """

def test_the_nics_of_a_sample_are_counted() -> None:
    assert values(families_of(HGX), "gdrtop_sample_nics")[()] == 10
""",
        ),
    ),
    ("tests/probes/metrics/test_metrics.py", "tests/tui/commands/metrics", "-k", "metric or sample"),
    {
        "probes/metrics/metrics.py": (
            "tests/probes/metrics/test_metrics.py",
            "metrics.toml and families() of probes/metrics/ differ",
        ),
        "tui/manual/metrics.md": (
            "tests/probes/metrics/test_metrics.py",
            "add a row to tui/manual/metrics.md for {'gdrtop_sample_nics'}",
        ),
    },
)
NIC_FAMILY = Recipe(
    (
        Change(
            "probes/facts/pci/nic_families.py",
            """    NicFamily(
        "Sample",
        0x1AE0,
        ("sample_net",),
        "sample_rdma",
        "sample",
        no_dmabuf=(
            "The driver of Sample's NICs (sample_rdma) registers no DMA-BUF memory",
            "Update sample_rdma",
        ),
    ),
""",
            before='    NicFamily(\n        "MANA",',
        ),
        Change(
            "probes/simulation/faults/nic.toml",
            """
[nic-sample]
summary = "Sample NICs whose driver does not register DMA-BUFs"
on = "pcie-l40s"
finds = ["dmabuf-nic-driver-lacks-support"]
node = ["without_dmabuf", "1ae0:0001", "sample_", "sample_rdma"]
does = "needs_own_slots"
""",
        ),
        Change(
            "tests/probes/checks/path/test_gdr_path.py",
            '        ("nic-sample", "sample_0", "Sample\'s NICs (sample_rdma)", "Update sample_rdma"),\n',
            before="        # hw/irdma/verbs.c",
        ),
    ),
    (
        "tests/probes/checks/path/test_gdr_path.py",
        "tests/probes/checks/test_faults.py",
        "-k",
        "sample or family",
    ),
    {
        "probes/facts/pci/nic_families.py": (
            "tests/probes/checks/path/test_gdr_path.py",
            "[nic-sample-sample_0-Sample's NICs",
        ),
        "probes/simulation/faults/nic.toml": (
            "tests/probes/checks/test_faults.py::test_every_family_of_nics_without_dmabuf_has_a_fault",
            "add a fault to probes/simulation/faults/nic.toml for ['Sample']",
        ),
    },
)
FLEET_COLUMN = Recipe(
    (
        Change(
            "widgets/fleet/answer.py",
            '        Column("SAMPLE", cells_of(nodes, _gpus), 1, to_right=True),\n',
            before='        Column("FINDING"',
        ),
        Change("tui/manual/fleet.md", "SAMPLE, ", after="KERNEL, DRIVER, "),
        Change(
            "tests/tui/commands/test_formats.py",
            """

def test_a_sample_of_a_row_stands_before_the_finding() -> None:
    assert plain(draw_node_rows(compare(()))[0]).split()[-2:] == ["SAMPLE", "FINDING"]
""",
        ),
    ),
    ("tests/tui/commands/test_formats.py", "tests/tui/test_manual.py", "-k", "sample or column"),
    {
        "tui/manual/fleet.md": (
            "tests/tui/test_manual.py::test_every_column_of_fleet_rows_is_in_the_manual",
            "add to the row of --rows in tui/manual/fleet.md: {'SAMPLE'}",
        )
    },
)
OPTION = Recipe(
    (
        Change(
            "tui/commands/check.py",
            '            "--sample": "print a sample",\n',
            before='            "[ID ...]": "show only these checks',
        ),
        Change(
            "tui/commands/check.py",
            "    sample: bool = False  # print one\n",
            after='class CheckOptions(OutputOptions):\n    """What of the checks is printed, and how."""\n\n',
        ),
        Change(
            "tui/commands/check.py",
            '    hint += "; a sample" if options.sample else ""\n',
            after='    hint = "gdrtop check ID shows one check in detail"\n',
        ),
        Change(
            "tests/tui/commands/test_check.py",
            """

def test_a_sample_is_printed() -> None:
    assert "; a sample" in check("hgx-h100", sample=True)[1]
""",
        ),
    ),
    ("tests/tui/commands/test_check.py", "tests/tui/test_options.py"),
)
KERNEL_MESSAGE = Recipe(
    (
        Change("probes/facts/kernel/log_forms.txt", "NIC_POWER {mlx}: sample alarm\n", before="NIC_LINK \\S"),
        Change(
            "tests/probes/facts/kernel/test_log.py",
            """        ("mlx5_core 0000:5c:00.0: sample alarm", LogKind.NIC_POWER, "0000:5c:00.0"),
""",
            before='        ("mlx5_core 0000:41:00.0 enp65s0f0np0: Link down"',
        ),
    ),
    ("tests/probes/facts/kernel/test_log.py", "tests/probes/checks/nic", "-k", "message or log"),
    {"probes/facts/kernel/log_forms.txt": ("tests/probes/facts/kernel/test_log.py", "sample alarm")},
    others=("probes/facts/kernel/log.py", "probes/messages/kernel-mlx.toml", "probes/queries/kernel_log.py"),
)
RECIPES = {
    "a check": CHECK,
    "a fault": FAULT,
    "a probe": PROBE,
    "a redaction row": REDACTION,
    "a question to the host": QUESTION,
    "a live event": EVENT,
    "a counter": COUNTER,
    "a message": MESSAGE,
    "an NCCL variable": VARIABLE,
    "a setup step": SETUP_STEP,
    "a manifest": MANIFEST,
    "a simulated node": NODE,
    "a combination": COMBINATION,
    "a condition": CONDITION,
    "a screen": SCREEN,
    "a panel of the overview": PANEL,
    "a column of Live": COLUMN,
    "a benchmark tool": TOOL,
    "a manual page": PAGE,
    "a metric": METRIC,
    "a family of NICs": NIC_FAMILY,
    "a column of fleet --rows": FLEET_COLUMN,
    "an option": OPTION,
    "a kernel message": KERNEL_MESSAGE,
}
