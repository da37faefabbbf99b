"""Tables (trials.csv, timeline.csv, ...), plots and pages from results."""
