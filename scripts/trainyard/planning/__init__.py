"""Journal and plan of a sweep (slots, walltime), predictions, search, early stopping (ASHA, median)."""
