"""Atomic files, JSON lines, errors and other helpers; imports no other package."""
