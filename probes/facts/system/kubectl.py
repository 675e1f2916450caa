"""Questions to the API server with kubectl or oc, and why one has no answer.

Only `get` and `logs` are run, with a limit of 3 s for each request and without a cache on disk. Once the API
server does not answer, it is not asked again. Names are words of their own, so that recordings redact them.
kubectl's messages: k8s.io/kubectl, pkg/cmd/util/helpers.go.
"""

from __future__ import annotations

import re
from dataclasses import replace

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.system.kubernetes_objects import ContainerState, Object, kept_fields, objects
from probes.host.answers import CommandOutput
from probes.host.protocol import Host

_OPTIONS = ("--request-timeout=3s", "--cache-dir=/dev/null")
_SECONDS = 5.0
_LOG_LINES = 20
_LOG_BYTES = 16384
_LINE_LENGTH = 400
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # of objects and containers
_NOT_ASKED = Unknown(Reason.NOT_THERE, "kubectl", "neither kubectl nor oc is installed")


class Kubectl:
    """The first of the given programs that is installed."""

    def __init__(self, host: Host, programs: tuple[str, ...]) -> None:
        self._host = host
        self._programs = programs
        self.tool: Maybe[str] = _NOT_ASKED
        self.answers = False  # the API server has answered, if only by a refusal
        self._stopped: Unknown | None = None

    def get(self, kind: str, name: str) -> Maybe[Object]:
        """Return one object; NOT_THERE: the cluster has none of this name."""
        if _NAME.fullmatch(name) is None:
            return Unknown(Reason.MALFORMED, kind, f"“{printable(name, 80)}” is not a valid object name")
        absent = Unknown(Reason.NOT_THERE, kind, "no such object")
        return map_known(self._objects("get", kind, name), lambda found: found[0] if found else absent)

    def list(self, kind: str, *options: str) -> Maybe[tuple[Object, ...]]:
        """Return the objects of a kind; NOT_THERE: the cluster does not know the kind."""
        return self._objects("get", kind, *options)

    def log(self, container: ContainerState) -> tuple[str, ...]:
        """Return the last lines of a container's log; empty if it cannot be read."""
        names = (container.pod, container.namespace, container.name)
        if not all(_NAME.fullmatch(name) for name in names):
            return ()
        output = self._run(
            "logs",
            container.pod,
            *("--namespace", container.namespace, "--container", container.name),
            f"--tail={_LOG_LINES}",
            f"--limit-bytes={_LOG_BYTES}",
        )
        return () if isinstance(output, Unknown) else parse_log(output.stdout)

    def _objects(self, *words: str) -> Maybe[tuple[Object, ...]]:
        output = self._run(*words, "--output=json")
        return map_known(output, lambda answer: objects(answer.stdout))

    def _run(self, *words: str) -> Maybe[CommandOutput]:
        if self._stopped is not None:
            return self._stopped
        programs = self._programs if isinstance(self.tool, Unknown) else (self.tool,)
        for program in programs:
            output = self._host.run((program, *words, *_OPTIONS), _SECONDS)
            if isinstance(output, Unknown) and output.reason is Reason.NOT_THERE:
                continue
            if isinstance(output, Unknown):
                self._stopped = output
                return output
            self.tool = program
            return self._judged(output, words)
        self._stopped = _NOT_ASKED
        return _NOT_ASKED

    def _judged(self, output: CommandOutput, words: tuple[str, ...]) -> Maybe[CommandOutput]:
        if output.exit_status == 0:
            self.answers = True
            return output
        failure, is_final = parse_failure(output.stderr, words[1])
        if is_final:
            self._stopped = failure
        else:
            self.answers = True
        return failure


def without_variables(answer: Maybe[CommandOutput]) -> Maybe[CommandOutput]:
    """Return kubectl's objects with only the fields that are read: variables can have passwords."""
    if isinstance(answer, Unknown) or answer.argv[:1] not in (("kubectl",), ("oc",)):
        return answer
    if answer.argv[1:2] != ("get",):
        return answer
    return replace(answer, stdout=kept_fields(answer.stdout))


def parse_log(text: str) -> tuple[str, ...]:
    """Return the last lines of a log without blank ones, each cut to a length that can be shown."""
    lines = [printable(line, _LINE_LENGTH) for line in text.split("\n") if line.strip()]
    return tuple(lines[-_LOG_LINES:])


def parse_failure(stderr: str, what: str) -> tuple[Unknown, bool]:
    """Return why kubectl failed, and whether the API server should not be asked again.

    `what`: the kind or the pod that was asked for.
    """
    text = stderr.lower()
    source = f"kubectl get {what}"

    def has(*phrases: str) -> bool:
        return any(phrase in text for phrase in phrases)

    if has("forbidden"):
        return Unknown(Reason.NEEDS_PERMISSION, source, f"to read {what} in the cluster"), False
    if has("you must be logged in", "unauthorized", "provide credentials"):
        return Unknown(Reason.NEEDS_PERMISSION, source, "this user is not logged in to the cluster"), True
    if has("doesn't have a resource type", "could not find the requested resource", "no matches for kind"):
        return Unknown(Reason.NOT_THERE, source, f"the cluster does not know {what}"), False
    if has("localhost:8080", "no configuration has been provided", "invalid configuration"):
        return Unknown(Reason.NOT_THERE, source, "this user has no kubeconfig for a cluster"), True
    if has("(notfound)"):
        return Unknown(Reason.NOT_THERE, source, f"no such {what}"), False
    if has("timeout", "timed out", "deadline exceeded"):
        return Unknown(Reason.TIMED_OUT, source, "the API server does not respond"), True
    if has("refused", "unable to connect", "no route to host", "no such host", "dial tcp", "x509", "tls:"):
        return Unknown(Reason.IO_ERROR, source, "cannot connect to the API server"), True
    first = next((line for line in stderr.split("\n") if line.strip()), "kubectl failed without a message")
    return Unknown(Reason.IO_ERROR, source, printable(first, 160)), True
