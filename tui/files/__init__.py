"""Files that belong to gdrtop."""


class NotWritten(Exception):
    """A file was not written; the message says why. It ends a command that does not handle it."""
