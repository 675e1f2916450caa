"""A fleet that is read again and again."""
