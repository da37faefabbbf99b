#!/bin/bash
# https://optuna.readthedocs.io/en/stable/tutorial/10_key_features/004_distributed.html
#SBATCH --gpus-per-task=1
#SBATCH --time=10
python enqueue.py
srun python worker.py
