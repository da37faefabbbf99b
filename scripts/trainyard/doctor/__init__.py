"""Checks of a site before anything is submitted."""
