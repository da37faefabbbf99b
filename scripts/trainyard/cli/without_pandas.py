"""Lets Snakemake start without pandas, whose import takes a quarter of a second, until something needs it."""

import importlib
import sys
from types import ModuleType
from typing import Any, Final

# A module of the Slurm plugin, which the plugin imports for a report that is seldom requested. It imports pandas.
REPORT: Final = "snakemake_executor_plugin_slurm.efficiency_report"


def import_snakemake() -> None:
    """Import Snakemake's command line, and let this module stand in for that of the report."""
    sys.modules[REPORT] = sys.modules[__name__]
    import snakemake.cli  # noqa: F401  (takes a second)
    from snakemake.persistence import PersistenceBase

    # Where pandas is installed, Snakemake imports it when it first records a parameter, which may be a table.
    of_pandas = getattr(PersistenceBase, "_serialize_param_pandas", None)
    if of_pandas is None:  # a later release of Snakemake
        return

    def serialize(records: Any, value: Any) -> Any:
        """The text by which Snakemake finds out whether the parameter of a rule has changed."""
        if "pandas" in sys.modules:
            return of_pandas(records, value)
        return records._serialize_param_builtin(value)  # no value can be a table

    PersistenceBase._serialize_param_pandas = serialize


def create_efficiency_report(*arguments: Any, **options: Any) -> None:
    """What the plugin calls for `--slurm-efficiency-report`."""
    _real().create_efficiency_report(*arguments, **options)


def __getattr__(name: str) -> Any:
    """Whatever else a later release of the plugin imports from its module."""
    if name.startswith("__"):  # what Python looks for
        raise AttributeError(name)
    return getattr(_real(), name)


def _real() -> ModuleType:
    if sys.modules.get(REPORT) is sys.modules[__name__]:
        del sys.modules[REPORT]
    return importlib.import_module(REPORT)
