"""What Slurm needs: the devices of a job on this node, and whether the node may take jobs."""
