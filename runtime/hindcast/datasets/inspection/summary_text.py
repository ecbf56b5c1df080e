"""The text of a summary, for the terminal and the HTML report."""

from __future__ import annotations

from typing import Any

from hindcast import formatting
from hindcast.datasets.inspection.summary import Coverage, Origin, Summary


def make_facts(summary: Summary) -> dict[str, str]:
    """Return label -> text for everything in a summary except distributions; unknown values are left out."""
    is_sampled = summary.sampled_episodes < summary.episodes
    values_by_label = {
        "format": ", ".join(summary.layouts) or None,
        "prepared": None
        if summary.prepared_path is None
        else f"copy in {summary.prepared_path} (described below)",
        "episodes": formatting.integer(summary.episodes),
        "timesteps": formatting.integer(summary.timesteps),
        "looked at": _describe_sample(summary) if is_sampled else None,
        "size": f"{formatting.size(summary.stored_bytes)} on disk in {formatting.plural(summary.files, 'file')}, "
        f"{formatting.size(summary.bytes)} in memory",
        "environment": summary.environment,
        "observations": _describe_space(summary.observation_space, summary.observation_space_from),
        "actions": _describe_space(summary.action_space, summary.action_space_from),
        "columns": ", ".join(
            f"{name} {description.removesuffix(' []')}" for name, description in summary.columns.items()
        ),
        "ends": (
            f"{formatting.as_percentage(summary.terminated)} terminated, "
            f"{formatting.as_percentage(summary.truncated)} truncated"
        ),
        "rewards": _describe_rewards(summary),
        "action_logp": "recorded" if summary.has_logp else "not recorded",
        "digest": summary.digest[:16],
    }
    return {label: value for label, value in values_by_label.items() if value}


def describe_coverage(coverage: Coverage) -> str:
    """Describe a coverage in one sentence."""
    cells = len(coverage.counts) * len(coverage.counts[0])
    axes = "principal component" if cells == coverage.side else "two principal components"
    return (
        f"{formatting.count(coverage.observations)} observations visit "
        f"{formatting.as_percentage(coverage.occupied_share)} of {cells} cells over the first {axes} "
        f"({formatting.as_percentage(coverage.explained_variance)} of the variance), "
        f"evenness {formatting.significant(round(coverage.evenness, 2))}"
    )


def _describe_sample(summary: Summary) -> str:
    text = f"{formatting.plural(summary.sampled_episodes, 'episode')}, spread evenly"
    if summary.checked_episodes > summary.sampled_episodes:
        text += f"; ids and ends of {formatting.integer(summary.checked_episodes)}"
    return text


def _describe_space(space: dict[str, Any] | None, origin: Origin | None) -> str:
    suffix = " (guessed from the data)" if origin == "guessed" else ""
    return formatting.space(space) + suffix


def _describe_rewards(summary: Summary) -> str | None:
    rewards = summary.rewards
    if rewards is None:
        return None
    text = f"{formatting.significant(rewards.min)} to {formatting.significant(rewards.max)}"
    if summary.zero_rewards is not None:
        text += f", {formatting.as_percentage(summary.zero_rewards)} of them zero"
    if summary.rewarded_episodes_share is not None and summary.zero_rewards:
        text += (
            f"; {formatting.as_percentage(summary.rewarded_episodes_share)} of episodes have a nonzero reward"
        )
    return text
