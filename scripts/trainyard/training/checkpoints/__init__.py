"""The state of a training, and its checkpoints."""
