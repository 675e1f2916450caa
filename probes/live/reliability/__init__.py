"""How NICs and GPUs behave over weeks of jobs."""
