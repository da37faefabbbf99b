"""Staging a dataset, and the staged dataset as training reads it."""
