"""A simulated Slurm cluster for sweeps: the driver of a sweep runs on a clock that jumps from one event to the next.

Only what a sweep runs on is simulated: time, nodes, GPUs and their failures, Ray's actors, and the trials. Everything
that decides is the program itself: `run_sweep` with its plan, loop, queue, failure policy, time limits and journal.
"""
