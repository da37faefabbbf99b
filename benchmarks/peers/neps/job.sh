#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=10
# https://automl.github.io/neps/latest/examples/efficiency: each call of neps.run with the same folder is a worker.
python worker.py
