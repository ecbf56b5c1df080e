"""Reports of a run: events, results, and the HTML report with plots."""
