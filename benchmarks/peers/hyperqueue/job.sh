#!/bin/bash
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-task=2
#SBATCH --time=10
srun python sweep.py
