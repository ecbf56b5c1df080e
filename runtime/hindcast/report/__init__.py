"""What a run tells: events while it goes on, its results, and the HTML report with curves and pictures."""
