"""The command line of all programs, and the config as the Snakefile sees it."""
