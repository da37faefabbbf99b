"""Reads and merges config files, and reports all errors at once: place, reason, value and suggestion."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from trainyard.config.config import Config
from trainyard.config.datasets import Table
from trainyard.config.parser import ConfigError, find_unusable, parse_value, read_file
from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Sweep
from trainyard.config.train import union_members
from trainyard.config.trials import CostError, expand, relative_cost, trainings, trials_to_check
from trainyard.config.weights import WeightsError, identifying
from trainyard.utils.files import digest_of
from trainyard.utils.text import suggest


def read_config(path: Path) -> Config:
    """The checked config of a YAML or JSON file.

    Raises:
        ConfigError: the file is missing, cannot be parsed, or has errors.
    """
    return check_config(read_file(path), source=str(path))


def check_config(raw: Any, *, source: str = "config") -> Config:
    """The checked config of a file's content, or a ConfigError that lists all errors."""
    if unusable := find_unusable(raw):
        raise ConfigError(f"1 error in {source}:\n  {unusable}")
    try:
        config = Config.model_validate(raw)
        problems = list(_cross_checks(config, config.datasets))
    except ValidationError as error:
        items = error.errors(include_url=False)[:MAX_CHECKED]
        # Not those of missing keys beside an unknown one, by which such a key may be meant.
        with_unknown = {item["loc"][:-1] for item in items if item["type"] == "extra_forbidden"}
        items = [item for item in items if item["type"] != "missing" or item["loc"][:-1] not in with_unknown]
        problems = [*map(_describe, items), *_errors_of_rest(raw, [item["loc"] for item in items])]
    if problems := list(dict.fromkeys(problems)):  # the members of a union can report the same error
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        more = [f"and {len(problems) - MAX_ERRORS} more"] if len(problems) > MAX_ERRORS else []
        lines = [f"  {problem[:MAX_LENGTH]}" for problem in (*problems[:MAX_ERRORS], *more)]
        raise ConfigError("\n".join([f"{count} in {source}:", *lines]))
    return config


def as_given(config: Config) -> dict[str, Any]:
    """A config as JSON, without what is left to the defaults."""
    return config.model_dump(mode="json", exclude_unset=True)


def config_copy(config: Config, results: Path) -> Path:
    """The file in the results from which the programs of a run with this config read it."""
    return results / "configs" / f"{digest_of(as_given(config))}.json"


def _errors_of_rest(raw: Any, wrong: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Errors in the references of the studies that are valid by themselves, where others are not."""
    if not isinstance(raw, dict) or not isinstance(raw.get("datasets"), dict):
        return  # studies refer to datasets
    rest = {name: dict(part) if isinstance(part, dict) else part for name, part in raw.items()}
    for section, *names in wrong:
        if names and isinstance(rest.get(section), dict):
            rest[section].pop(names[0], None)
        else:
            rest.pop(section, None)
    with suppress(ValidationError):
        yield from _cross_checks(Config.model_validate(rest), raw["datasets"])


def compose(files: Sequence[Path], command_line: Mapping[str, Any]) -> dict[str, Any]:
    """Merge config files and `--config`: later files override earlier ones, and `--config` overrides all of them.

    Snakemake merges them in the same way, but it reads numbers as YAML 1.1 (`1e-5` is text), and the values of
    `--config` as text; this function reads numbers as YAML 1.2 in both. `--config` can also select studies: `all`,
    `none` or names as the value of a section. Then only the datasets that these studies need are kept.

    Raises:
        ConfigError: a file cannot be read, or a selected study does not exist.
    """
    whole: dict[str, Any] = {}
    for path in files:
        if not isinstance(content := read_file(path), Mapping):
            raise ConfigError(f"{path}: must be a mapping of sections")
        try:
            whole = _merge(whole, content)
        except RecursionError:
            raise ConfigError(f"{path}: cannot be read: it is nested too deeply") from None
    typed = {name: parse_value(value) if isinstance(value, Mapping) else value for name, value in command_line.items()}
    return _select(_merge(whole, typed), whole)


def _select(raw: dict[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the studies that the command line selects, as the files define them."""
    selections = {section: raw[section] for section in STUDIES if isinstance(raw.get(section), (str, list, int))}
    if not selections:
        return raw
    chosen = {section: raw.get(section) or {} for section in STUDIES if section not in selections}
    for section, names in selections.items():
        defined = whole.get(section) or {}
        if not isinstance(defined, Mapping):
            return raw  # the check of the config says what is wrong
        words = [str(name) for name in names] if isinstance(names, list) else str(names).split(",")
        if words == ["all"]:
            words = list(defined)
        elif words == ["none"]:
            words = []
        if unknown := [name for name in words if name not in defined]:
            hint = suggest(unknown[0], defined)
            raise ConfigError(f"--config {section}: there is no {unknown[0]!r}; {hint} (or `all`, or `none`)")
        chosen[section] = {name: defined[name] for name in words}
    studies = [study for section in chosen.values() if isinstance(section, Mapping) for study in section.values()]
    needed = [study.get("dataset") for study in studies if isinstance(study, Mapping)]
    datasets = raw.get("datasets") or {}
    if isinstance(datasets, Mapping):
        datasets = {name: dataset for name, dataset in datasets.items() if name in needed}
    return {**raw, **chosen, "datasets": datasets}


def _merge(value: Any, more: Any) -> Any:
    """Merge two values as Snakemake does: mappings are merged, everything else is replaced."""
    if not isinstance(more, Mapping):
        return more
    known = value if isinstance(value, Mapping) else {}
    return {**known, **{key: _merge(known.get(key), inner) for key, inner in more.items()}}


STUDIES: Final = ("sweeps", "scaling")
MAX_CHECKED: Final = 1000  # errors that are described
MAX_ERRORS: Final = 50  # in a message
MAX_LENGTH: Final = 500  # of an error


def _cross_checks(config: Config, names: Collection[str]) -> Iterator[str]:
    """Errors in the references between sections, and in trials; `names` of datasets include those with errors."""
    for place, study in config.studies():
        if study.dataset is None:
            continue
        if study.dataset not in names:
            yield f"{place}.dataset: there is no dataset {study.dataset!r}; {suggest(study.dataset, names)}"
        elif (dataset := config.datasets.get(study.dataset)) is None:
            continue  # it has errors itself
        elif study.trains and isinstance(dataset, Table):
            yield f"{place}.dataset: {study.dataset!r} is a table, which `train` cannot use, but `trees` can"
        elif getattr(dataset, "targets", None):
            yield from dict.fromkeys(_objective_errors(place, study))
    for name, scaling in config.scaling.items():
        if scaling.base_training:
            try:
                identifying(scaling.base_training.model_dump())
            except WeightsError as error:
                yield f"scaling.{name}.train.pretrained: {error}"
    for name, sweep in config.sweeps.items():
        yield from _sweep_errors(name, sweep)


def _objective_errors(place: str, study: Sweep | Scaling) -> Iterator[str]:
    """Errors of a study on a dataset whose labels are numbers."""
    what = f"the labels of {study.dataset!r} are numbers (`targets`)"
    if isinstance(study, Sweep) and study.kind == "trees":
        yield f"{place}.dataset: {what}, which `trees` cannot predict"
        return
    for train in trainings(study):
        if not train.has_user_loss:
            yield f"{place}.train.loss: {what}: give a loss for them, such as torch.nn.functional:mse_loss"
        if train.augment.mixup or train.augment.cutmix:
            yield f"{place}.train.augment: {what}, but mixup and cutmix mix classes"
        metric = study.epoch_metric(train)
        if metric and metric.endswith("_accuracy") and metric not in train.further_metrics:
            remedy = "set val_loss or one of your `metrics`"
            yield f"{place}.metric: {what}, so there is no {metric}: {remedy}"


def _sweep_errors(name: str, sweep: Sweep) -> Iterator[str]:
    """The errors of all trials; the same error in several trials is reported once."""
    expansion = expand(sweep)
    if not (expansion.trials or expansion.errors or sweep.search):
        yield f"sweeps.{name}: has no trials; give `grid`, `trials`, `sample` or `search`"
    if sweep.cost is not None:
        try:
            for trial in trials_to_check(sweep):
                relative_cost(sweep.cost, trial)
        except CostError as error:
            yield f"sweeps.{name}.cost: {error}"
    texts: dict[str, None] = {}
    base = ("sweeps", name, sweep.kind, sweep.kind)  # its place in the config as Pydantic has it
    for place, wrong in expansion.errors[:MAX_CHECKED]:
        if isinstance(wrong, ValidationError):
            for item in wrong.errors(include_url=False):
                keys = ".".join(map(str, (place, *item["loc"])))
                reason = _reason({**item, "loc": (*base, *item["loc"])})
                texts[f"sweeps.{name}.{keys}: {reason}"] = None
        else:
            texts[f"sweeps.{name}.{place}: {wrong}"] = None
    yield from texts


def _describe(item: Any) -> str:
    """One validation error as `place: reason`."""
    path = _find(item["loc"]).path
    if path[2:3] == ("grid",) and path[4:] in (("low",), ("high",), ("min",), ("max",), ("log",)):
        drawn = f"`search: {{values: {{{path[3]}: {{low: , high: }}}}}}`"
        ways = f"list values, give {{start: , stop: , step: }}, or {drawn} (or `sample`)"
        return f"{'.'.join(path[:4])}: a grid has no ranges: {ways}"
    return f"{'.'.join(path) or 'the file'}: {_reason(item)}"


def _reason(item: Any) -> str:
    """The reason of an error, with the value found or a suggestion."""
    place = _find(item["loc"])
    kind = item["type"]
    if kind == "extra_forbidden":
        return _unknown_key(_find(item["loc"][:-1]), str(item["loc"][-1]))
    if kind in ("union_tag_invalid", "literal_error"):
        expected = item["ctx"].get("expected_tags") or item["ctx"]["expected"]
        options = [option.strip(" '") for option in expected.replace(" or ", ",").split(",")]
        given = item["ctx"].get("tag", item["input"])
        return f"{given!r} is not known; {_suggest(str(given), options)}"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        known = ", ".join(place.keys)
        return f"must be a mapping, not {item['input']!r}" + (f"; known: {known}" if known else "")
    if kind == "list_type" and item["input"] is not None and not isinstance(item["input"], dict):
        if place.path[-1] == "guess":
            return GUESS
        return f"must be a list: write [{json.dumps(item['input'], default=str)}]"
    if kind == "missing":
        section = _find(item["loc"][:-1])
        key = item["loc"][-1]
        fields = {kind: _fields(model).get(key) for kind, model in section.kinds.items()}
        without = [f"a `{kind}`" for kind, field in fields.items() if not (field and field.is_required())]
        if section.kind == "train" and without:
            return f"is required for a training; or give {' or '.join(without)}"
        return "is required, but missing"
    if kind == "pattern":
        return str(item["msg"])
    value = "" if isinstance(item["input"], (dict, list, BaseModel)) else f" (is {item['input']!r})"
    message = str(item["msg"])
    if kind != "invalid":  # a sentence of Pydantic; one of Trainyard may begin with what the user wrote
        message = f"{message[0].lower()}{message[1:]}"
    return message + value


def _unknown_key(section: "_Place", key: str) -> str:
    """What is wrong with a key that its section does not have."""
    is_study = len(section.path) == 2
    path = section.path[:1] if is_study else section.path[-1:]
    if remedy := REPLACED.get(".".join((*path, key))):
        return f"is no longer an option: {remedy}"
    if key in section.kinds:
        return f"give {key} or {section.kind}, not both"
    if owners := [f"`{kind}`" for kind, model in section.kinds.items() if key in _fields(model)]:
        return f"is for {' or '.join(owners)}, not for `{section.kind}`{_REASONS.get((section.kind, key), '')}"
    if key == "guess":
        return GUESS
    hint = _suggest(key, section.keys)
    if "options" in section.keys and hint.startswith("known"):
        hint += f"; an argument of Optuna's sampler is given as options: {{{key}: ...}}"
    return f"unknown key; {hint}"


def _suggest(word: str, known: Sequence[str]) -> str:
    """What may be meant by a word of the config, also by one of another tool's."""
    own = WORDS_OF_OTHERS.get(word)
    return f"did you mean {own!r}?" if own in known else suggest(word, known)


WORDS_OF_OTHERS: Final = {  # of W&B, Ray Tune, Optuna and Slurm: what they are here
    "bayes": "tpe",
    "min": "low",
    "max": "high",
    "parameters": "values",
    "space": "values",
    "samples": "trials",
    "num_samples": "trials",
    "n_trials": "trials",
    "gpus": "gpus_per_node",
    "time": "walltime",
}
OWN_AUGMENTATION: Final = "augment in your own dataset, with `on_the_fly: true` and torchvision's transforms.v2"
USE_ENV: Final = "give `env`, which may also be an interpreter, the folder of an environment, or `trainyard`"
REPLACED: Final = {  # options of earlier versions: what to do instead
    "trees": "write a sweep: {dataset: digits, trees: {}, grid: {library: [xgboost, lightgbm]}}",
    "tensorboard": "the target `tensorboard` writes the event files",
    "pricing.kwh": "scaling.csv has the energy in kWh",
    "sweeps.python": USE_ENV,
    "scaling.python": USE_ENV,
    "sweeps.fill": "further seeds are run by `repeats` and `repeat_best`",
    "sweeps.resumable": "a function resumes from what it has left in its `checkpoint_dir`",
    "datasets.checksum": "write it after the url: http://.../images.zip#md5=...",
    "datasets.fit": "images are cropped at the center; a dataset with `source: python` can resize them otherwise",
    "datasets.channels": "images are RGB; a dataset with `source: python` can have other channels",
    "datasets.seed": "the split is the same each time; give validation images of your own for another one",
    "train.sync_batchnorm": "call torch.nn.SyncBatchNorm.convert_sync_batchnorm in the function of your model",
    "slots.slots_per_node": "give `cpus`, of which each trial has `cpus_per_trial`",
    "slots.nodes": "give `jobs`: a job has the nodes of one trial, which is one without `nodes_per_trial`",
    "search.evidence": "a search learns from all trials of its sweep, also those that you write in `trials`",
    "metrics.tensorboard": "give the folder of the event files as `file`, as in `runs/**`",
    "stop.options": "early stopping is by `asha`, `hyperband` or `median`",
    "scaling.find_unused_parameters": "give `ddp: {find_unused_parameters: true}`",
    "scaling.collective_timeout_minutes": "give `ddp: {timeout_minutes: ...}`",
    "scaling.checkpoint_every_seconds": "with `keep_checkpoints: all`, there is a checkpoint for each epoch",
    "train.monitor": "give `metric` beside `train`",
    "train.monitor_mode": "give `mode` beside `train` in a sweep; in a study, the name of the metric tells",
    "train.nesterov": "give `optimizer_args: {nesterov: true}`",
    "stop.min_samples": "`median` compares with five other trials or more",
    "augment.erasing": OWN_AUGMENTATION,
    "augment.rand_augment": OWN_AUGMENTATION,
}
GUESS: Final = "is for the values of one key: {low: 0.001, high: 0.1, guess: 0.01}, or {choices: [16, 32], guess: 32}"


_REASONS: Final = {  # by the kind of a sweep or study, and a key that another kind has
    ("function", "env"): ": a function runs in Trainyard's own process, so start it by a command of your environment",
    ("script", "ddp"): ": a script sets up DDP itself",
    ("script", "lr_scaling"): ": a script has its own learning rate",
}


@dataclass
class _Place:
    """A place in the config: its path, the type of its value, and of a union with tags, its kind and all of them."""

    path: tuple[str, ...]
    type: Any
    kind: str = ""
    kinds: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """The keys of the section here; those of all kinds if none is named, which then is `train`."""
        models = self.kinds.values() if self.kind == "train" else union_members(self.type)
        return sorted({name for model in models for name in _fields(model)})


def _find(loc: tuple[Any, ...]) -> _Place:
    """The place of an error, without the parts by which Pydantic names the members of unions."""
    place = _Place((), Config)
    for part in loc:
        kinds = _kinds(place.type)
        if part in kinds:
            place = _Place(place.path, kinds[part], part, kinds)
        elif part == "[key]" or (len(_members(place.type)) > 1 and not kinds):  # a union without tags
            place = _Place(place.path, Any)
        else:
            place = _Place((*place.path, str(part)), _value_type(place.type, part))
    return place


def _fields(annotation: Any) -> dict[str, FieldInfo]:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation.model_fields if is_model else {}


def _members(annotation: Any) -> list[Any]:
    return [member for member in union_members(annotation) if member is not type(None)]


def _kinds(annotation: Any) -> dict[str, Any]:
    """The members of a union by their tags, or by their values of `source`; empty for other types."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kinds: dict[str, Any] = {}
    for member in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        tags = [each.tag for each in getattr(member, "__metadata__", ()) if isinstance(each, Tag)]
        model = union_members(member)[0]
        if "source" in (fields := _fields(model)):
            tags = list(get_args(fields["source"].annotation))
        kinds |= dict.fromkeys(tags, model)
    return kinds


def _value_type(annotation: Any, part: Any) -> Any:
    """The type of the value at a key or an index; the type itself if it has none."""
    for member in _members(annotation):
        if found := _fields(member).get(part):
            return Annotated[found.annotation, *found.metadata] if found.metadata else found.annotation
        if get_origin(member) is dict:
            return get_args(member)[1]
        if get_origin(member) is list and isinstance(part, int):
            return get_args(member)[0]
    return annotation
