"""Why a job with several nodes hangs."""
