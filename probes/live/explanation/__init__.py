"""What a user of a job needs to know about one of its processes."""
