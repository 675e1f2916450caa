"""The step of the Kubernetes operators: what their driver pods on this node wait for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage
from probes.facts.system.kubernetes import ContainerMessage, ContainerState, message_of
from probes.queries.finding import Evidence
from probes.setup.situation import Situation
from probes.setup.step import SetupStep, StepState
from probes.setup.steps.definition import SetupFacts

_MOST_LOG_LINES = 3
_NO_CLUSTER = "this is not a Kubernetes node"
_MESSAGES = {ContainerMessage.WAITING_FOR_DRIVERS: "waiting for MOFED"}  # as the operators' own documents say
_FINISHED = "Completed"


def with_operators(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Add the containers that are not ready to the step of the checks."""
    cluster = facts.situation.kubernetes
    if isinstance(cluster, Unknown):
        is_absent = cluster.reason is Reason.NOT_THERE and step.state is StepState.DONE and not step.findings
        return replace(step, state=StepState.SKIPPED, reason=_NO_CLUSTER) if is_absent else step
    listed = cluster.containers
    if isinstance(listed, Unknown):
        return step
    waiting = [container for container in listed if not container.ready and container.reason != _FINISHED]
    if not waiting:
        return step
    evidence = tuple(dict.fromkeys((*step.evidence, *_evidence(waiting))))
    if step.state is StepState.TO_DO:
        return replace(step, evidence=evidence)
    reason = state_of(waiting[0])
    return replace(step, state=StepState.TO_DO, reason=reason, evidence=evidence)


def state_of(container: ContainerState) -> str:
    """Return what a container does, in one line: "nvidia-peermem-ctr: waiting for MOFED"."""
    message = message_of(container)
    words = "" if message is None else _MESSAGES.get(message, message.value)
    if not words:
        words = "ready" if container.ready else container.reason or "not ready"
    return f"{container.name}: {words}"


def _evidence(waiting: Iterable[ContainerState]) -> Iterable[Evidence]:
    for container in waiting:
        pod = f"{container.namespace}/{container.pod}" if container.namespace else container.pod
        yield Evidence(pod, state_of(container))
        for line in container.log[-_MOST_LOG_LINES:]:
            yield Evidence(container.name, line)


def driver_is_operators(situation: Situation) -> bool:
    """Return whether the GPU Operator owns the driver: changes on the node itself do not last."""
    driver = situation.gpu_driver
    return isinstance(driver, DriverPackage) and driver.origin is DriverOrigin.CONTAINER
