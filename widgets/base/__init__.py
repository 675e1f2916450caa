"""Lines, boxes and numbers that every view draws with."""
