"""The command line of all programs, resources of the rules (for sbatch), and the summary of a run."""
