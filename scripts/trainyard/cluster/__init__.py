"""The Slurm job and its hosts, queries of Slurm's commands, Ray inside the job, folders on a node."""
