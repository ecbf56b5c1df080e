"""A summary's facts as people read them: on the terminal and in the HTML report."""

from __future__ import annotations

from typing import Any

from hindcast import formatting
from hindcast.datasets.inspection.summary import Coverage, Origin, Summary


def facts(summary: Summary) -> dict[str, str]:
    """Everything except distributions, by label; what is not known is left out."""
    sampled = summary.sampled_episodes < summary.episodes
    found = {
        "format": ", ".join(summary.layouts) or None,
        "prepared": None
        if summary.prepared is None
        else f"into {summary.prepared}, which the following describes",
        "episodes": formatting.integer(summary.episodes),
        "timesteps": formatting.integer(summary.timesteps),
        "looked at": _looked_at(summary) if sampled else None,
        "size": f"{formatting.size(summary.stored_bytes)} on disk in {formatting.plural(summary.files, 'file')}, "
        f"{formatting.size(summary.bytes)} in memory",
        "environment": summary.environment,
        "observations": _space(summary.observation_space, summary.observation_space_from),
        "actions": _space(summary.action_space, summary.action_space_from),
        "columns": ", ".join(f"{name} {what.removesuffix(' []')}" for name, what in summary.columns.items()),
        "ends": (
            f"{formatting.as_percentage(summary.terminated)} terminated, "
            f"{formatting.as_percentage(summary.truncated)} truncated"
        ),
        "rewards": _rewards(summary),
        "action_logp": "recorded" if summary.has_logp else "not recorded",
        "digest": summary.digest[:16],
    }
    return {label: value for label, value in found.items() if value}


def describe_coverage(coverage: Coverage) -> str:
    """The numbers of a coverage in a sentence."""
    cells = len(coverage.counts) * len(coverage.counts[0])
    over = "principal component" if cells == coverage.side else "two principal components"
    return (
        f"{formatting.as_percentage(coverage.occupied)} of {cells} cells over the first {over} "
        f"({formatting.as_percentage(coverage.explained)} of the variance) hold any of "
        f"{formatting.count(coverage.observations)} observations, "
        f"evenness {formatting.significant(round(coverage.evenness, 2))}"
    )


def _looked_at(summary: Summary) -> str:
    text = f"{formatting.plural(summary.sampled_episodes, 'episode')}, spread evenly"
    if summary.checked_episodes > summary.sampled_episodes:
        text += f"; ids and ends of {formatting.integer(summary.checked_episodes)}"
    return text


def _space(document: dict[str, Any] | None, origin: Origin | None) -> str:
    where = " (guessed from the data)" if origin == "guessed" else ""
    return formatting.space(document) + where


def _rewards(summary: Summary) -> str | None:
    rewards = summary.rewards
    if rewards is None:
        return None
    text = f"{formatting.significant(rewards.min)} to {formatting.significant(rewards.max)}"
    if summary.zero_rewards is not None:
        text += f", {formatting.as_percentage(summary.zero_rewards)} of them zero"
    if summary.rewarded_episodes is not None and summary.zero_rewards:
        text += f"; {formatting.as_percentage(summary.rewarded_episodes)} of episodes have any"
    return text
