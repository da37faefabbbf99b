"""Gradient-boosted tree models on CPUs."""
