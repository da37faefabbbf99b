"""Exceptions whose message is enough for the user: they are reported without a stack trace."""


class UserError(Exception):
    """The request cannot be carried out; the message says what happened, where, and what to do."""


class Diverged(UserError):
    """The loss became NaN or infinite."""
