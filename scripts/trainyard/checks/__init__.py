"""Checks before a job: of a config with its files and code, of a site, and of nodes by a short job."""
