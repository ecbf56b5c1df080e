"""`hindcast compare RUN…`: compare trainings by setting, with mean and spread over seeds."""

from typing import Annotated

import typer

from hindcast.cli.command import KubeContext, RunNamespace, command
from hindcast.cli.screen import Screen


@command
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Run folders, or folders that contain run folders; paths or URIs. Or training/NAME on a cluster.",
        ),
    ],
    *,
    screen: Screen,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="episodeReturnMean, estimatedReturn, validationLoss, or a learner's metric such as total_loss. "
            "Default: the first of these that all runs have.",
        ),
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write an HTML page with curves and all runs.")
    ] = None,
    namespace: RunNamespace = None,
    kube_context: KubeContext = None,
) -> None:
    """Compare trainings: settings that differ, and the metric's mean and spread over the seeds of each setting."""
    from rich.table import Table

    from hindcast.cli.cluster.run_storage import find_on_cluster, results_path
    from hindcast.report.comparison import compare as compare_runs
    from hindcast.report.comparison import comparison_tables, write_comparison

    comparison = compare_runs(find_on_cluster(runs, results_path, namespace, kube_context), by)
    tables = []
    for content in comparison_tables(comparison):
        table = Table(box=None, padding=(0, 2), title=content.title, title_justify="left")
        for column in content.columns:
            table.add_column(column, overflow="fold")
        for row in content.rows:
            table.add_row(*row)
        tables.append(table)
    document, lines = comparison.to_json(), [comparison.sentence]
    if html is not None:
        document["report"] = write_comparison(comparison, html)
        lines.append(f"report: {document['report']}")
    screen.show_result(document, *tables, *lines)
