"""Next steps for a resource: a sentence, and a command to copy if there is one."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hindcast.cli.cluster.explain import UNSEEN, Explanation, label_selector
from hindcast.formatting import capitalise
from hindcast_operator.planning.reasons import Reason


@dataclass(frozen=True)
class NextStep:
    """A next step: a sentence and a shell command. One of them may be empty."""

    text: str
    command: str = ""


def next_steps(explanation: Explanation, context: str | None = None) -> list[NextStep]:
    """Return what the reader can do now, most useful first; empty if there is nothing to do but wait.

    Args:
        explanation: the resource.
        context: context of the kubeconfig, if the reader chose one; the commands repeat it.
    """
    return list(_Steps(explanation, context).steps())


class _Steps:
    def __init__(self, explanation: Explanation, context: str | None) -> None:
        self._explanation = explanation
        self._context = context

    def steps(self) -> Iterator[NextStep]:
        # The advice becomes the text of the first command, unless that command has a text of its own.
        advice, commands = self._advice(), list(self._command_steps())
        if advice and not (commands and commands[0].text):
            yield NextStep(advice, commands.pop(0).command if commands else "")
        yield from commands

    def _advice(self) -> str:
        """Return the action that `Reason` recommends for the resource's reason; empty if it recommends none.

        While the resource is retrying, the reason is that of the lost attempt.
        """
        is_retrying = self._explanation.state == "Retrying" and self._explanation.attempts
        reason = self._explanation.attempts[0].get("reason") if is_retrying else self._explanation.reason
        action = Reason.from_word(reason or "").action
        return "" if action.startswith("nothing") else capitalise(action)

    def _command_steps(self) -> Iterator[NextStep]:
        explanation = self._explanation
        if explanation.state == UNSEEN:
            yield NextStep(
                "No operator has seen the resource yet: check that an operator is running",
                self._kubectl_command(
                    "get", "pods", "--all-namespaces", "-l", "app.kubernetes.io/name=hindcast"
                ),
            )
        elif explanation.state == "Waiting" or explanation.reason == Reason.DEPENDENCY_FAILED:
            for reference in explanation.references:
                yield NextStep("", self._hindcast_command("status", reference))
        elif explanation.state == "Queued":
            yield NextStep(
                "See the queue", self._kubectl_command("get", "workloads", "-n", explanation.namespace)
            )
        elif explanation.state in ("Starting", "Pending"):
            yield from self._starting_steps()
        elif explanation.state == "Running":
            yield NextStep("Follow its log", self._hindcast_command("logs", str(explanation), "--follow"))
        elif explanation.state == "Retrying":
            yield NextStep(
                "See how far the lost attempt got", self._hindcast_command("logs", str(explanation))
            )
        elif explanation.state == "Suspended" and explanation.should_suspend:
            yield NextStep("Resume from the checkpoint", self._patch_command(suspend=False))
        elif explanation.state == "Succeeded":
            yield from self._result_steps()
        elif explanation.state == "Failed":
            yield NextStep("", self._hindcast_command("logs", str(explanation)))
            yield NextStep("Then run again", self._patch_command(revision=explanation.revision + 1))
        elif explanation.reason == Reason.SPEC_CHANGED:
            yield NextStep("", self._patch_command(revision=explanation.revision + 1))

    def _starting_steps(self) -> Iterator[NextStep]:
        explanation = self._explanation
        for pool in explanation.pools:
            for pod in pool.pods:
                if pod.problem is not None:
                    yield NextStep(
                        "", self._kubectl_command("describe", "pod", pod.name, "-n", explanation.namespace)
                    )
                    return
        if explanation.attempts:
            pod_selector = label_selector(explanation.kind, explanation.name, explanation.attempts[0])
            yield NextStep(
                "See its pods",
                self._kubectl_command("get", "pods", "-n", explanation.namespace, "-l", pod_selector),
            )

    def _result_steps(self) -> Iterator[NextStep]:
        explanation = self._explanation
        checkpoint = explanation.checkpoint.get("bestPath") or explanation.checkpoint.get("path")
        if checkpoint:
            yield NextStep("Evaluate the policy", shlex.join(["hindcast", "evaluate", str(checkpoint)]))
        elif explanation.output.get("path"):
            yield NextStep(
                "Inspect the data", shlex.join(["hindcast", "inspect", str(explanation.output["path"])])
            )

    def _patch_command(self, **spec: Any) -> str:
        patch = json.dumps({"spec": spec})
        kind = self._explanation.kind.lower()
        namespace = ("-n", self._explanation.namespace)
        return self._kubectl_command(
            "patch", kind, self._explanation.name, *namespace, "--type", "merge", "-p", patch
        )

    def _hindcast_command(self, command: str, *arguments: str) -> str:
        context = ("--context", self._context) if self._context else ()
        return shlex.join(["hindcast", command, *arguments, "-n", self._explanation.namespace, *context])

    def _kubectl_command(self, *arguments: str) -> str:
        context = ("--context", self._context) if self._context else ()
        return shlex.join(["kubectl", *arguments, *context])
