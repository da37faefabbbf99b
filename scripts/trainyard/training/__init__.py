"""The training loop and its parts: the only loop, for a trial and for a DDP rank alike."""
