"""The base of errors a user can mend."""


class UserError(ValueError):
    """Bad input: the message names the key or file and the fix. The CLI prints it, no traceback."""
