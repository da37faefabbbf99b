"""Atomic files, JSON lines, errors: imports nothing of the other packages."""
