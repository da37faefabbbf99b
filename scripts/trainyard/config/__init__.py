"""The sections of the config as typed models, reading a file, and the trials of a sweep."""
