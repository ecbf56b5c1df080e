"""Renders an offline evaluation on the terminal: a table of estimates, and a verdict."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hindcast import formatting
from hindcast.evaluate.offline import MAX_CALIBRATION_ERROR, Estimate, OfflineReport
from hindcast.run.checkpoint_evaluation import OfflineEvaluation

_ANSWER_COLOURS = {"better": "green", "worse": "red", "unknown": "yellow"}


def render_report(evaluation: OfflineEvaluation, data_name: str) -> Iterator[RenderableType]:
    """Yield the output of `hindcast evaluate --data` from top to bottom.

    Args:
        evaluation: result of the evaluation.
        data_name: name of the evaluated data, for the title.
    """
    report = evaluation.report
    yield (
        f"{data_name}: {formatting.plural(report.episodes, 'episode')}, "
        f"{formatting.plural(report.timesteps, 'timestep')}; "
        f"returns discounted by {formatting.discount(evaluation.gamma, report.is_timed)}; "
        f"{formatting.acting(report.explore)}"
    )
    if evaluation.num_trained:
        trained_episodes = formatting.plural(evaluation.num_trained, "more episode")
        yield f"left out: {trained_episodes} of the data, which trained the policy"
    elif evaluation.num_trained is None:
        yield "it is not known which episodes trained this policy; if they are among these, the estimates are too high"
    yield _table(report)
    for reason in dict.fromkeys(report.not_estimated.values()):
        names = ", ".join(name for name, name_reason in report.not_estimated.items() if name_reason == reason)
        yield f"{names} not estimated: {reason}"
    if report.calibration is not None:
        calibration_error = report.calibration.error
        quality = (
            "fits well"
            if calibration_error <= MAX_CALIBRATION_ERROR
            else "fits badly, so importance ratios are unreliable"
        )
        yield (
            "the recorded policy's log-probabilities are missing from the data; a clone of it "
            f"{quality} (calibration error {calibration_error:.2f})"
        )
    yield Text(report.verdict.sentence, style=_ANSWER_COLOURS[report.verdict.answer])


def _table(report: OfflineReport) -> Table:
    table = Table(box=None, padding=(0, 2))
    table.add_column("estimate", style="dim")
    table.add_column("return", justify="right")
    table.add_column("interval")
    rows = {"recorded policy": report.behaviour}
    if report.behaviour_continued is not None:
        rows["the same, with cut-off episodes continued by the evaluated policy"] = report.behaviour_continued
    for name, estimate in {**rows, **report.estimates}.items():
        table.add_row(name, formatting.significant(estimate.value), _interval(estimate))
    return table


def _interval(estimate: Estimate) -> str:
    if estimate.interval is None:
        return "none"
    low, high = map(formatting.significant, estimate.interval)
    return f"{low} to {high}"
