"""Programs and functions that users bring, run as a trial."""
