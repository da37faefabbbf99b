"""The journal of a sweep, its plan, predictions, search, early stopping (ASHA, median), and accounts."""
