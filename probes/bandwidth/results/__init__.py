"""Results of bandwidth tests: compared, saved as JSON, summarized."""
