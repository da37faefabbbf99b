"""What results were made for, in a file beside each, such as `made_for/trials` beside `trials.csv`.

Snakemake keeps the parameters of its rules in `.snakemake` only. Results may be copied without that folder, and an
older copy of them may be restored. So the programs record beside an output the terms for which they made it: a text
that changes with everything in the config on which the output depends. Each is a parameter of a rule, too.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Config
from trainyard.config.datasets import Dataset
from trainyard.config.scaling import Scaling
from trainyard.config.trials import result_digest
from trainyard.config.user_programs import metrics_digest
from trainyard.utils.files import atomic_write

FOLDER: Final = "made_for"  # of files named as the outputs, each with the terms; empty while the output is being made
TABLES: Final = {"sweeps": "ranking.csv", "scaling": "scaling.csv"}  # the derived table that has a receipt, by kind


@contextmanager
def made_for(output: Path, terms: str) -> Iterator[None]:
    """Record that the block makes an output for these terms; without a record of its own if it raises.

    Raises:
        StorageError: the record cannot be written.
    """
    record(output, "")
    yield
    record(output, terms)


def record(output: Path, terms: str) -> None:
    """Record the terms for which an output was made; "" while it is being made.

    Raises:
        StorageError: the record cannot be written.
    """
    with atomic_write(_receipt_of(output)) as file:
        file.write(terms)


def is_outdated(output: Path, terms: str) -> bool:
    """Whether an output was made for other terms; False if it does not exist, or if its terms are unknown."""
    if not output.exists():
        return False
    try:
        return _receipt_of(output).read_text() != terms
    except FileNotFoundError:
        return False


def _receipt_of(output: Path) -> Path:
    return output.parent / FOLDER / output.stem


# ---- the terms of the outputs; those of a sweep's tables are the `digest` of its TrialSpace


def staging_terms(dataset: Dataset) -> str:
    """The terms of a staged dataset, and of its download."""
    return dataset.model_dump_json()


def training_terms(study: Scaling, run: str) -> str:
    """The terms of a run of a scaling study, whose dataset is an input of its rule."""
    return f"{result_digest(study, run, '')} {metrics_digest(study.program_metrics, study.completion)}"


def table_terms(config: Config, kind: str, name: str) -> str:
    """The terms of the derived tables of a study, beside the results from which they are derived."""
    terms: dict[str, Any] = {}
    if kind == "sweeps":
        terms["target"] = config.sweeps[name].target
    else:
        study = config.scaling[name]
        terms["scales"] = study.scales
        terms["repeats"] = study.repeats
        terms["mode"] = study.mode
        terms["gpu_hour"] = config.pricing.gpu_hour
    return json.dumps(terms)


def overview_terms(config: Config) -> str:
    """The terms of the overview, beside the tables and plots from which it is made."""
    return config.pricing.model_dump_json()
