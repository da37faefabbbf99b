#!/bin/bash
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=2
#SBATCH --time=10
# https://docs.nersc.gov/jobs/workflow/gnuparallel/: one GNU parallel on each node, with its share of the list.
sort -rn trials.txt > longest-first.txt
srun --no-kill --wait=0 ./node.sh
