"""The one kind of error that is meant for people."""


class UserError(Exception):
    """What was asked for cannot be done: the message says what, where, and what to do; no stack trace is needed."""
