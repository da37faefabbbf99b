#!/bin/bash
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=10
# https://slurm.schedmd.com/srun.html: steps that run at the same time. Slurm holds back those that do not fit yet.
while read -r seconds index; do
  [ -e "done/$index" ] || srun --nodes=1 --ntasks=1 --exact --gres=gpu:1 ./trial.sh "$seconds" "$index" < /dev/null &
done < <(sort -rn trials.txt)
wait
