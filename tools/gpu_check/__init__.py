"""The GPU check: shows on one GPU that the training loop is right, and how fast it is. See docs/gpu.md."""
