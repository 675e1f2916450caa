"""The terminal: input, output in few bytes, and the pinned parts of Textual."""
