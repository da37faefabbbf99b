"""Ray: its start and end on the nodes of a job, and its workers. The door: `start_ray` and `worker_parent`."""
