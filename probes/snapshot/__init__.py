"""One moment of a node: its facts, rates, changes and the verdict."""
