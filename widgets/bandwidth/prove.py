"""What registers: a table of GPUs by NICs for each path, and the reasons of what does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from probes.bandwidth.prove import CONTEXT_MEMORY, DMABUF, GpuTrial, Outcome, PairResult, PathResult
from probes.base.grouping import grouped
from probes.base.text import plural
from probes.queries.unproven_paths import OVER_C2C
from widgets.bandwidth.table import draw_grid
from widgets.base.lines import Line, Run, Tone, line, paragraphs, wrapped

MARKS = {
    Outcome.REGISTERS: Run("✓", Tone.GOOD),
    Outcome.REFUSED: Run("✗", Tone.BAD),
    Outcome.NO_ANSWER: Run("?", Tone.WARNING),
    Outcome.NOT_TRIED: Run("–", Tone.DIM),
}
DOUBTFUL = Run("✓?", Tone.WARNING)
NOTICE = (
    "Each GPU gets a CUDA context for a moment, and 2 MiB of its memory are registered with each NIC as a "
    f"DMA-BUF and by their address. A context takes {CONTEXT_MEMORY} of GPU memory in public reports. "
    "Nothing is sent, and everything is released again."
)
NOT_PROVEN = "A registration does not show that data arrives. gdrtop bench does."
_TITLES = {DMABUF: "DMA-BUF", "peer memory": "Peer memory (nvidia-peermem)"}
_MOST_NAMED = 4


SIMULATED = "simulated: no GPU and no NIC is used, and no job is affected"


def notice_lines(width: int, is_simulated: bool) -> list[Line]:
    """Return what a registration does and costs, and a blank line."""
    return [*wrapped(NOTICE, width), *(wrapped(SIMULATED, width) if is_simulated else ()), ()]


def draw_results(results: Sequence[PairResult], width: int) -> list[Line]:
    """Return a table for each path, a legend, and each reason once with its pairs."""
    pairs = {(result.gpu, result.nic): result for result in results}
    gpus, nics = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True)) if pairs else ([], [])
    lines: list[Line] = []
    for place, title in enumerate(_TITLES.values()):
        lines += [(), line(Run(title, Tone.TITLE))] if lines else [line(Run(title, Tone.TITLE))]
        lines += draw_grid(gpus, nics, width, partial(_cell, pairs, place))
    found = {path.outcome for result in results for _, path in result.paths}
    words = [f"{mark.text} {outcome.value}" for outcome, mark in MARKS.items() if outcome in found]
    if any(map(_is_doubtful, results)):
        words.append(f"{DOUBTFUL.text} registers, but transfers may fail or data be wrong")
    legend = wrapped("   ".join(words), width, Tone.DIM)
    return [*lines, (), *legend, *draw_doubts(results, width), *draw_reasons(results, width)]


def _is_doubtful(result: PairResult) -> bool:
    return bool(result.doubt) and result.outcome is Outcome.REGISTERS


def _mark(result: PairResult, outcome: Outcome) -> Run:
    return DOUBTFUL if result.doubt and outcome is Outcome.REGISTERS else MARKS[outcome]


def _cell(pairs: dict[tuple[str, str], PairResult], place: int, gpu: str, nic: str, cells: int) -> Run:
    pair = pairs[gpu, nic]
    mark = _mark(pair, pair.paths[place][1].outcome)
    return mark._replace(text=f"{mark.text:>{cells}}")


def draw_doubts(results: Sequence[PairResult], width: int) -> list[Line]:
    """Return why data of registered pairs may be wrong, each reason once."""
    doubts = grouped((result.doubt, result) for result in filter(_is_doubtful, results))
    lines: list[Line] = []
    for doubt, pairs in doubts.items():
        lines += [(), *wrapped(f"▲ {plural(len(pairs), 'pair')}: {doubt}", width, Tone.WARNING, hanging="  ")]
        explains = "gdrtop help topology explains it."
        where = explains if doubt == OVER_C2C else "gdrtop check shows why, and what to do."
        lines += wrapped(where, width, Tone.PLAIN, "  ")
    return lines


def draw_reasons(results: Sequence[PairResult], width: int) -> list[Line]:
    """Return why paths do not register, each reason once."""
    tried = ((named, result) for result in results for named in result.paths)
    reasons = grouped((named, result) for named, result in tried if named[1].outcome is not Outcome.REGISTERS)
    of_dmabuf = ((path, pairs) for (name, path), pairs in reasons.items() if name == DMABUF)
    both = {path: pairs for path, pairs in of_dmabuf if all(pair.peer_memory == path for pair in pairs)}
    lines: list[Line] = []
    for (name, path), pairs in reasons.items():
        if path in both and name != DMABUF and pairs == both[path]:
            continue  # the same reason for both paths stands there already
        where = "both paths" if both.get(path) == pairs else name
        head, *rest = wrapped(f"{_pair_names(pairs)}, {where}", width - 2, Tone.TITLE)
        lines += [(), (MARKS[path.outcome], Run(" "), *head), *((Run("  "), *piece) for piece in rest)]
        lines += draw_path(path, width, "  ")
    return lines


def draw_path(path: PathResult, width: int, indent: str = "") -> list[Line]:
    """Return the outcome of a path as text: what refused, and why."""
    if path.outcome is Outcome.REGISTERS:
        return wrapped("registers", width, Tone.GOOD, indent)
    text = f"{path.outcome.value}: {path.why}"
    if path.function and path.error:
        text += f"; {path.function} failed with {path.error}"
    elif path.function:
        text += f", in {path.function}"
    return wrapped(text, width, Tone.PLAIN, indent, "  ")


def _pair_names(pairs: Sequence[PairResult]) -> str:
    """Return "GPU0 with mlx5_0, mlx5_1", "GPU0, GPU1 with 10 NICs"."""
    gpus = list(dict.fromkeys(pair.gpu for pair in pairs))
    nics = list(dict.fromkeys(pair.nic for pair in pairs))
    return f"{_names(gpus, 'GPU')} with {_names(nics, 'NIC')}"


def _names(names: Sequence[str], noun: str) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMED else plural(len(names), noun)


def draw_users(trials: Sequence[GpuTrial], width: int) -> list[Line]:
    """Return the GPUs that are in use, a line each."""
    head = line(Run("In use by jobs, which share their GPU's memory:", Tone.WARNING))
    users = (f"▲ {trial.label}: {trial.users}" for trial in trials)
    return [head, *paragraphs(users, width, Tone.WARNING, "  ")]


def gpu_marks(results: Sequence[PairResult]) -> Line:
    """Return how a GPU did: a mark for each NIC, and how many register."""
    return line(*(_mark(result, result.outcome) for result in results), f"  {_counted(results)}")


def gpu_line(results: Sequence[PairResult]) -> str:
    """Return how a GPU did, in a line: "GPU0: registers with 10 of 10 NICs"."""
    return f"{results[0].gpu}: {_counted(results)}"


def _counted(results: Sequence[PairResult]) -> str:
    count = sum(result.outcome is Outcome.REGISTERS for result in results)
    return f"registers with {count} of {plural(len(results), 'NIC')}"
