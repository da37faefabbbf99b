"""The journal of a sweep, its plan (slots, walltime), predictions, search, early stopping (ASHA, median), accounts."""
