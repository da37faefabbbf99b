"""Users' commands and functions, run as trials."""
