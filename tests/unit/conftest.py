import os

from loops import data, staged

# Tests run beside each other: threads of OpenMP must not take the CPU while they wait. Libraries read it once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["data", "staged"]
