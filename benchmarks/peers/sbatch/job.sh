#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=10
# https://slurm.schedmd.com/sbatch.html
./trial.sh "$1" "$2"
