"""Tree models on CPUs."""
