"""What to do next about a resource: a sentence, and a command to copy where there is one."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hindcast.cli.cluster.explain import UNSEEN, Explanation, selector
from hindcast_operator.planning.reasons import Reason


@dataclass(frozen=True)
class NextStep:
    """Something to do. `text` may be empty where the command says it all, and the other way round."""

    text: str
    command: str = ""


def next_steps(found: Explanation, context: str | None = None) -> list[NextStep]:
    """What the reader can do now, the most useful first; empty where there is only to wait.

    Args:
        context: of the kubeconfig, where the reader chose one: the commands choose it too.
    """
    return list(_Steps(found, context).steps())


class _Steps:
    def __init__(self, found: Explanation, context: str | None) -> None:
        self._found = found
        self._context = context

    def steps(self) -> Iterator[NextStep]:
        advice, commands = self._advice(), list(self._commands())
        if advice and not (commands and commands[0].text):
            yield NextStep(advice, commands.pop(0).command if commands else "")
        yield from commands

    def _advice(self) -> str:
        """What the table of reasons says: of a lost attempt, why it was lost."""
        lost = self._found.state == "Retrying" and self._found.runs
        reason = self._found.runs[0].get("reason") if lost else self._found.reason
        try:
            action = Reason.of(reason or "").action
        except ValueError:  # of a newer operator
            return ""
        return "" if action.startswith("nothing") else action[0].upper() + action[1:]

    def _commands(self) -> Iterator[NextStep]:
        found = self._found
        if found.state == UNSEEN:
            yield NextStep(
                "No operator has seen it yet: check that one is running",
                self._kubectl("get", "pods", "--all-namespaces", "-l", "app.kubernetes.io/name=hindcast"),
            )
        elif found.state == "Waiting" or found.reason == Reason.DEPENDENCY_FAILED:
            for reference in found.references:
                yield NextStep("", self._hindcast("status", reference))
        elif found.state == "Queued":
            yield NextStep("See the queue", self._kubectl("get", "workloads", "-n", found.namespace))
        elif found.state in ("Starting", "Pending"):
            yield from self._starting()
        elif found.state == "Running":
            yield NextStep("Follow its log", self._hindcast("logs", str(found), "--follow"))
        elif found.state == "Retrying":
            yield NextStep("See how far the lost attempt got", self._hindcast("logs", str(found)))
        elif found.state == "Suspended" and found.should_suspend:
            yield NextStep("Resume from the checkpoint", self._patch(suspend=False))
        elif found.state == "Succeeded":
            yield from self._results()
        elif found.state == "Failed":
            yield NextStep("", self._hindcast("logs", str(found)))
            yield NextStep("Then run again", self._patch(revision=found.revision + 1))
        elif found.reason == Reason.SPEC_CHANGED:
            yield NextStep("", self._patch(revision=found.revision + 1))

    def _starting(self) -> Iterator[NextStep]:
        found = self._found
        for pool in found.pools:
            for pod in pool.pods:
                if pod.problem is not None:
                    yield NextStep("", self._kubectl("describe", "pod", pod.name, "-n", found.namespace))
                    return
        if found.runs:
            own = selector(found.kind, found.name, found.runs[0])
            yield NextStep("See its pods", self._kubectl("get", "pods", "-n", found.namespace, "-l", own))

    def _results(self) -> Iterator[NextStep]:
        found = self._found
        checkpoint = found.checkpoint.get("bestPath") or found.checkpoint.get("path")
        if checkpoint:
            yield NextStep("Evaluate the policy", shlex.join(["hindcast", "evaluate", str(checkpoint)]))
        elif found.output.get("path"):
            yield NextStep("Inspect the data", shlex.join(["hindcast", "inspect", str(found.output["path"])]))

    def _patch(self, **spec: Any) -> str:
        change = json.dumps({"spec": spec})
        kind = self._found.kind.lower()
        where = ("-n", self._found.namespace)
        return self._kubectl("patch", kind, self._found.name, *where, "--type", "merge", "-p", change)

    def _hindcast(self, command: str, *arguments: str) -> str:
        context = ("--context", self._context) if self._context else ()
        return shlex.join(["hindcast", command, *arguments, "-n", self._found.namespace, *context])

    def _kubectl(self, *arguments: str) -> str:
        context = ("--context", self._context) if self._context else ()
        return shlex.join(["kubectl", *arguments, *context])
