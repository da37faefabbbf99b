"""Data sources (`sources` defines their interface), staging, and the staged dataset as training reads it."""
