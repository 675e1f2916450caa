"""The benchmark tools: argv, parsers of their output, failure patterns."""
