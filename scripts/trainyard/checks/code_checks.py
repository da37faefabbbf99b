"""Checks of the user's code and the trainings of a config, which a process of its own tries.

What has passed is not tried again until the config, the code or the environment changes: the answer is kept in the
user's cache folder.
"""

import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from trainyard.checks.code_probe import DRIVERS
from trainyard.checks.findings import Finding
from trainyard.checks.helper_programs import ask_helper
from trainyard.config.config import Config
from trainyard.config.datasets import Python, Torchvision
from trainyard.config.scaling import TrainScaling
from trainyard.config.sweep import FunctionSweep
from trainyard.config.train import BUILT_IN_MODELS, Train
from trainyard.config.trials import trainings, trials_to_check
from trainyard.data.known_images import known_images
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of, expand_path, write_json
from trainyard.utils.import_path import SCRIPTS
from trainyard.utils.text import describe_exit

# The extra of Trainyard, as in `trainyard[train]`, that has a package.
EXTRAS: Final = {
    "torch": "train", "torchvision": "train", "xgboost": "trees", "lightgbm": "trees", "tensorboard": "tensorboard"
}  # fmt: skip
MOST: Final = 50  # trainings per study that `-n` tries; a model takes up to a second
CHECKS_VERSION: Final = 1  # increment it when a change of the code finds more than before
MOST_KEPT: Final = 300  # answers in the cache
_TRIED: Final = ("pretrained", "freeze", "lr_scale", "metrics")  # and own losses, and models of others
_OF_OPTIMIZER: Final = ("optimizer", "momentum", "optimizer_args")
_TOGETHER_WITH: Final = ("model", "model_args", "metric_args", "small_images", "loss", "loss_args")


def check_code(
    config: Config, results: Path, *, anew: bool = False, other_environment: bool = False
) -> Iterator[Finding]:
    """Whether the user's code and the trainings of a config work; from the cache, unless `anew`.

    With `anew`, all trainings are tried; otherwise at most `MOST` of each study. `other_environment`: Snakemake creates
    the environment of the jobs, which has what may be missing here.

    Raises:
        UserError: they cannot be tried, since the other process ended.
    """
    most = sys.maxsize if anew else MOST
    needed = dict.fromkeys(_packages(config))
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        extras = ",".join(sorted({EXTRAS[name] for name in missing}))
        message = f"the config needs {', '.join(missing)}, missing where Snakemake runs"
        remedy = f"install trainyard[{extras}] there, as in `uv tool install 'trainyard[{extras}]'`"
        yield Finding("packages", "warns" if other_environment else "fails", message, remedy)
    request: dict[str, list[Any]] = {}
    if not (other_environment and importlib.util.find_spec("torch") is None):  # the user's code may import it
        request["imports"] = list(_imports(config))
    if "torch" not in missing:
        request["trainings"] = list(_trainings(config, results, most=most))
        request["ddp"] = list(_ddp_arguments(config))
    if any(request.values()):
        yield from (Finding(*each) for each in _answer(request, anew=anew)["findings"])


def _packages(config: Config) -> Iterator[str]:
    """The packages of extras that a config needs."""
    trains = any(study.trains for _, study in config.studies())
    if trains:
        yield "torch"
    if trains or any(isinstance(dataset, Torchvision) for dataset in config.datasets.values()):
        yield "torchvision"
    for sweep in config.sweeps.values():
        for trial in trials_to_check(sweep):
            yield from trial.spec.packages
    metrics = (study.program_metrics for _, study in config.studies())
    if any(each and each.has_event_files for each in metrics):
        yield "tensorboard"


def _answer(request: dict[str, list[Any]], *, anew: bool) -> dict[str, Any]:
    """The answer to a request, and the state of the files that it depends on; it is kept if nothing fails."""
    kept = _cache_file(request)
    answer: dict[str, Any] | None
    with suppress(OSError, ValueError):  # there is none, or it is damaged
        answer = json.loads(kept.read_text())
        if answer and not anew and all(_state(file) == state for file, state in answer["files"].items()):
            return answer
    answer, done = ask_helper("checks.code_probe", request, task="trying your code and the trainings")
    if answer is None:  # the process ended itself, as by os._exit() in a user's code
        names = ", ".join(path for _, path, _, _ in request.get("imports", ())) or "what the config trains"
        last = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise UserError(f"the process that tries {names} ended ({describe_exit(done.returncode)}):\n{last}")
    weights = (spec["pretrained"] for _, spec, _ in request.get("trainings", ()) if "pretrained" in spec)
    files = sorted({*answer["files"], *(str(expand_path(path)) for path in weights)})
    answer["files"] = {file: _state(file) for file in files}
    if all(verdict != "fails" for _, verdict, _ in answer["findings"]):
        with suppress(OSError):  # then it is tried again
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, answer)
            oldest_first = sorted(kept.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
            for old in oldest_first[:-MOST_KEPT]:
                old.unlink()
    return answer


# ---- what is tried


def _imports(config: Config) -> Iterator[tuple[str, str, str, dict[str, Any] | None]]:
    """Place, import path, role and the arguments of the later call for all code of the user."""
    for name, dataset in config.datasets.items():
        if isinstance(dataset, Python):
            called = {"args": [], "kwargs": dataset.model_dump(mode="json")["args"]}
            yield f"datasets.{name}.factory", dataset.factory, "dataset", called
    for place, study in config.studies():
        if isinstance(study, FunctionSweep):
            called = {"args": ["config", "context"], "kwargs": {}}
            yield f"{place}.function", study.function, "function", called
        paths = [(key, *path) for spec in trainings(study) for key, path in spec.import_paths.items()]
        for key, path, role in dict.fromkeys(paths):
            yield f"{place}.train.{key}", path, role, None


def _trainings(config: Config, results: Path, *, most: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Place in the config, tried settings, and what is known of the images of each training that is tried."""
    for section, study in config.studies():
        if study.base_training is None or study.dataset is None:
            continue
        trials: list[tuple[Train, dict[str, Any]]]
        trials = [(each.spec, each.values) for each in trials_to_check(study) if isinstance(each.spec, Train)]
        images = asdict(known_images(config.datasets[study.dataset], results / "data" / study.dataset))
        trainings = dict[str, tuple[str, dict[str, Any]]]()
        for spec, values in trials or [(study.base_training, {})]:
            if tried := _tried(spec):
                varied = [f"{key} = {value!r}" for key, value in values.items() if key.partition(".")[0] in tried]
                place = f"{section}.train with {', '.join(varied)}" if varied else f"{section}.train"
                trainings.setdefault(json.dumps(tried), (place, tried))
        for place, tried in list(trainings.values())[:most]:
            yield place, tried, images


def _ddp_arguments(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place in the config and arguments of DistributedDataParallel of each study that has some."""
    for name, study in config.scaling.items():
        if isinstance(study, TrainScaling) and study.ddp.arguments:
            yield f"scaling.{name}", study.ddp.arguments


def _tried(spec: Train) -> dict[str, Any]:
    """The settings of a training that are tried; empty if there is nothing to try."""
    of_torch = _OF_OPTIMIZER if spec.optimizer_args else ()
    if spec.schedule.arguments or spec.schedule.name == "step":  # which needs its `step_size`
        of_torch = (*of_torch, "schedule")
    is_built_in = spec.model in BUILT_IN_MODELS  # their arguments are checked without building them
    if is_built_in and not (of_torch or spec.has_user_loss or any(getattr(spec, key) for key in _TRIED)):
        return {}
    settings = spec.model_dump(mode="json", exclude_defaults=True, include={*of_torch, *_TRIED, *_TOGETHER_WITH})
    mixing = {key: 1.0 for key in ("mixup", "cutmix") if getattr(spec.augment, key)}  # other labels for the loss
    return {"model": spec.model, **settings, **({"augment": mixing} if mixing else {})}


# ---- the cache


def _cache_file(request: dict[str, Any]) -> Path:
    """Where the answer to a request is kept: its name changes with the request and the environment.

    The file cannot be written if the user has no home folder.
    """
    where = [str(Path.cwd()), os.environ.get("PYTHONPATH")] if request.get("imports") else []
    installed = _state(sysconfig.get_path("purelib"))  # changes when packages are installed
    has_gpu = any(map(os.path.exists, DRIVERS))  # errors for the lack of a GPU are no mistakes
    digest = digest_of([CHECKS_VERSION, request, where, str(SCRIPTS), sys.version, installed, has_gpu])
    home = os.environ.get("HOME") or "/nonexistent"
    return Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache") / "trainyard" / "checks" / f"{digest}.json"


def _state(file: str) -> list[int] | None:
    """Size and modification time of a file; None without one."""
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
