#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=10
# https://help.rc.ufl.edu/doc/SLURM_Job_Arrays: each task runs several trials, here every n-th line of the list.
awk -v n="$SLURM_ARRAY_TASK_COUNT" -v task="$SLURM_ARRAY_TASK_ID" 'NR % n == task % n' longest-first.txt |
  while read -r seconds index; do [ -e "done/$index" ] || ./trial.sh "$seconds" "$index"; done
