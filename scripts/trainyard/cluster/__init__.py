"""The allocation, Slurm's answers, Ray inside the job, and folders on a node."""
