"""Stands in for a module of Snakemake's Slurm plugin until its efficiency report is requested.

The plugin imports that module first of all, and it pandas, which takes a third of Snakemake's start.
"""

import importlib
import sys
from typing import Any, Final

REAL: Final = "snakemake_executor_plugin_slurm.efficiency_report"


def defer_report() -> None:
    """Let the plugin import this module in place of its own. Call this before it is imported."""
    sys.modules[REAL] = sys.modules[__name__]


def create_efficiency_report(**options: Any) -> None:
    """What the plugin calls for `--slurm-efficiency-report`."""
    del sys.modules[REAL]
    importlib.import_module(REAL).create_efficiency_report(**options)
