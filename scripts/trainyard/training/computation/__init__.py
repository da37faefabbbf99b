"""How a step is computed: precision, deterministic kernels, torch.compile, CUDA graphs."""
