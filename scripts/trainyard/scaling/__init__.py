"""Launching the scales of a scaling study, and judging them."""
