"""The command line of all programs, and the resources of the rules, from which Snakemake makes the sbatch lines."""
