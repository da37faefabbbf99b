"""Whether this process is a rank that torchrun started."""

import os


def is_rank() -> bool:
    """Whether torchrun started this process. A job may inherit RANK alone from another launcher, as from Kubeflow."""
    return {"RANK", "TORCHELASTIC_RUN_ID"} <= os.environ.keys()
