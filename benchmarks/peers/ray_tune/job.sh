#!/bin/bash
# https://docs.ray.io/en/latest/cluster/vms/user-guides/community/slurm.html
# https://docs.ray.io/en/latest/ray-security/token-auth.html
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-task=2
#SBATCH --time=10
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$PWD/token
(umask 077; openssl rand -hex 32 > token)
export RAY_USAGE_STATS_ENABLED=0 RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus=2 --num-gpus=2 -- python -u sweep.py
