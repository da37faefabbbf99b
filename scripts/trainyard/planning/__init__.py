"""The journal of a sweep, its plan, durations, search, and accounts."""
