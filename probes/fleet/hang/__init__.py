"""Why a job hangs that runs on several nodes."""
