"""Digests that change with everything that changes the results of a scaling study or a tree study.

`dataset` is the digest of the staged dataset.
"""

from typing import Any

from trainyard.config.config import Trees
from trainyard.config.scaling import Scaling, ScriptScaling, TrainScaling
from trainyard.config.trials import RESULT_VERSION
from trainyard.config.weights import identifying
from trainyard.utils.files import digest_of


def training_spec(study: TrainScaling, run: str, dataset: str) -> dict[str, Any]:
    """Everything that changes the result of a run such as `4x2`; `study.train` is that of this run (`train_at`)."""
    return {
        "train": identifying(study.train.model_dump(mode="json", exclude_defaults=True)),
        "mode": study.mode,
        "retrain": study.retrain,
        "scale": run,
        "dataset": dataset,
        "version": RESULT_VERSION,
    }


def script_digest(study: ScriptScaling) -> str:
    """Changes with a study's script and its arguments."""
    what = study.model_dump(mode="json", include={"launcher", "python", "args", "retrain"})
    what |= {"script": study.program} | ({"env": study.env} if study.env else {})
    return digest_of(what | ({"workdir": study.workdir} if study.workdir != "keep" else {}), length=10)


def script_inputs_digest(study: ScriptScaling, dataset: str) -> str:
    """Changes with everything else that changes the result of a study's script."""
    return digest_of([study.launcher_options, study.mode, dataset])


def result_digest(study: Scaling, run: str, dataset: str) -> str:
    """The digest of a run of a scaling study, which its summary has as `spec_digest`."""
    if isinstance(study, ScriptScaling):
        return digest_of([script_digest(study), script_inputs_digest(study, dataset)], length=10)
    assert isinstance(study, TrainScaling)
    study = study.model_copy(update={"train": study.train_at(run)})
    return digest_of(training_spec(study, run, dataset), length=10)


def fit_digest(study: Trees, model: str, dataset: str) -> str:
    """The digest of a fitted model of a tree study."""
    params = study.params.get(model, {})  # type: ignore[call-overload]
    seed = retrain = 0  # keys of earlier versions
    return digest_of([model, study.rounds, seed, params, retrain, dataset, RESULT_VERSION])
