"""What all programs share, and the config as the Snakefile sees it."""
