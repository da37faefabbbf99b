"""Ray on the node of a job. Its door: `start.start_ray`, and `worker_parent.fork_parent` for a quicker start.

start           Ray on this machine
patches         what is patched in Ray while it starts, why, and how much that saves
worker_parent   the process that imports what workers need, from which they are forked
worker_request  the program that Ray runs in place of a worker: it requests a fork

With `TRAINYARD_FAST_START=0`, or without the last three, jobs start some seconds later, and nothing else changes.
"""
