#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=10
# https://slurm.schedmd.com/job_array.html: the task's line of the list is the trial.
read -r seconds index < <(sed -n "${SLURM_ARRAY_TASK_ID}p" "$1")
[ -e "done/$index" ] || ./trial.sh "$seconds" "$index"
