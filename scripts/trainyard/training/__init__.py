"""The training loop and its parts: one loop for a trial and for a DDP rank."""
