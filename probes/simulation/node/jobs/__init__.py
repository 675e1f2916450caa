"""Programs of a simulated node: a training job, its traffic, its logs."""
