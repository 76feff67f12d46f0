"""The one exception that is shown to a user as a sentence, without a traceback."""


class UserError(Exception):
    """Something the user can mend: the message names the thing and the remedy."""
