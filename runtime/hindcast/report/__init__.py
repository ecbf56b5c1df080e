"""What a run reports: events, results, and the HTML report with plots."""
