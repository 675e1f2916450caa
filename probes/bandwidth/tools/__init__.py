"""The benchmark tools: argv, parsers of their output, why a test failed."""
