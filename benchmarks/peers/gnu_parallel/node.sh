#!/bin/bash
# https://www.gnu.org/software/parallel/parallel_examples.html: the number of the job slot chooses the GPU.
awk -v nodes="$SLURM_NNODES" -v node="$SLURM_NODEID" 'NR % nodes == node' longest-first.txt |
  parallel --jobs 2 --colsep ' ' --joblog "node-$SLURM_NODEID.log" --resume-failed --retries 2 \
    CUDA_VISIBLE_DEVICES='$(({%} - 1))' ./trial.sh {1} {2}
