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

from trainyard.config.config import Config, Trees
from trainyard.config.datasets import Dataset
from trainyard.config.scaling import Scaling, ScriptScaling, TrainScaling
from trainyard.config.trials import RESULT_VERSION, training_content
from trainyard.utils.files import atomic_write, digest_of

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
    """The terms of a run of a scaling study."""
    if isinstance(study, TrainScaling):
        train = study.train.model_copy(update={"lr": study.lr_at(run)})
        what: Any = training_content(train)
    else:
        assert isinstance(study, ScriptScaling)
        what = study.model_dump(include={"python", "args", "metrics"}, mode="json") | {"script": study.program}
        what |= {"launcher": study.launcher_name, "launcher_options": study.launcher_options}
        what |= {"env": study.env} if study.env else {}
        what |= {"workdir": study.workdir} if study.workdir != "keep" else {}
    return digest_of([what, study.mode, study.retrain, RESULT_VERSION])


def fitting_terms(study: Trees) -> str:
    """The terms of a tree study."""
    return study.model_dump_json(exclude={"cpus"})


def table_terms(config: Config, kind: str, name: str) -> str:
    """The terms of the derived tables of a study, beside the results from which they are derived."""
    terms: dict[str, Any] = {}
    if kind == "scaling":
        study = config.scaling[name]
        terms["scales"] = study.scales
        terms["repeats"] = study.repeats
        terms["mode"] = study.mode
        terms["gpu_hour"] = config.pricing.gpu_hour
        if config.pricing.kwh is not None:
            terms["kwh"] = config.pricing.kwh
    elif kind == "sweeps":
        terms["target"] = config.sweeps[name].target
    return json.dumps(terms)


def overview_terms(config: Config) -> str:
    """The terms of the overview, beside the tables and plots from which it is made."""
    return config.pricing.model_dump_json()
