"""Data sources, staging, and the staged dataset as training reads it."""
