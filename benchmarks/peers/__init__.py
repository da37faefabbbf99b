"""The same work through Trainyard and through its alternatives, on the four-host Slurm; README.md explains it."""
