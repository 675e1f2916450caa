"""Simulated nodes for tests of the environment, changed before they are read."""

from __future__ import annotations

from collections.abc import Callable

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.platform import Cloud
from probes.setup.env.advice import Advice, Note
from probes.setup.env.recommend import recommend
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.tree import Tree
from probes.snapshot.examination import Examination, examine
from tests.support.doctor import examination_of

NO_CLOUD: Maybe[Cloud] = Unknown(Reason.NOT_THERE, "/sys/class/dmi/id", "no cloud")


def changed(name: str, change: Callable[[Tree], object]) -> Examination:
    """Return the examination of a node whose files were changed."""
    host = SimulatedHost(name, clock=lambda: 1000.0)
    change(host.tree)
    return examine(host)


def advice_for(
    node: str | Examination, nccl: str = "", cloud: Maybe[Cloud] = NO_CLOUD
) -> tuple[Advice, dict[str, str]]:
    """Return the advice, and its settings by name."""
    examination = examination_of(node) if isinstance(node, str) else node
    advice = recommend(examination, cloud, nccl)
    return advice, {setting.name: setting.value for setting in advice.settings}


def note_on(advice: Advice, variable: str) -> Note:
    """Return the only note on a variable."""
    (note,) = (note for note in advice.notes if note.variable == variable)
    return note
