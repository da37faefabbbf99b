"""A config is checked as a whole: every mistake is reported at once, with its place, reason and remedy."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
from trainyard.configfile import ConfigError, check_config, read_config
from trainyard.sweepspec import Slots, Sweep

ROOT = Path(__file__).parents[2]

GOOD = {
    "datasets": {"digits": {"source": "digits"}, "table": {"source": "table", "path": "x.csv", "target": "y"}},
    "sweeps": {"depth": {"dataset": "digits", "grid": {"lr": [0.1, 0.2]}}},
    "scaling": {"study": {"dataset": "digits", "scales": ["1x1", "1x2"]}},
    "trees": {"trees": {"dataset": "table"}},
}

# One mistake each: where, what stands there, and what the message must say.
MISTAKES = [
    ("datasets.digits.sed", 1, "datasets.digits.sed: unknown key; did you mean 'seed'?"),
    ("datasets.digits.source", "digit", "datasets.digits: 'digit' is not known; did you mean 'digits'?"),
    ("datasets.a/b", {"source": "digits"}, "'a/b' does not fit; a name becomes a folder"),
    ("datasets.table.path", "x.txt", "datasets.table.path: 'x.txt' does not fit; the file's name must end in .csv"),
    ("datasets.photos", {"source": "imagefolder"}, "datasets.photos: give either root or url"),
    ("datasets.photos", {"source": "imagefolder", "root": "x", "url": "http://x/y.zip"}, "give either root or url"),
    ("datasets.photos", {"source": "imagefolder", "url": "http://x/y.zip"}, "url needs a checksum, as in md5:"),
    ("datasets.photos", {"source": "imagefolder", "url": "x.zip"}, "'x.zip' does not fit; an address begins with http"),
    (
        "datasets.photos",
        {"source": "imagefolder", "url": "http://x/y.zip", "checksum": "md5:12"},
        "datasets.photos.checksum: 'md5:12' does not fit; a checksum is written md5:",
    ),
    ("datasets.photos", {"source": "imagefolder", "root": "x", "width": 3}, "give both height and width, or neither"),
    ("datasets.photos", {"source": "imagefolder", "root": "x", "fitt": "pad"}, "unknown key; did you mean 'fit'?"),
    ("datasets.mnist", {"source": "torchvision", "name": "MINST"}, "'MINST' is not known; did you mean 'MNIST'?"),
    ("sweeps.depth.dataset", "digit", "sweeps.depth.dataset: there is no dataset 'digit'; did you mean 'digits'?"),
    ("sweeps.depth.dataset", "table", "'table' is a table, which only `trees` can train on"),
    ("sweeps.depth.train.epochs", "two", "sweeps.depth.train.epochs: input should be a valid integer"),
    ("sweeps.depth.train.lr", -1, "sweeps.depth.train.lr: input should be greater than 0 (is -1)"),
    ("sweeps.depth.train.modle", "x", "sweeps.depth.train.modle: unknown key; did you mean 'model'?"),
    ("sweeps.depth.grid", {}, "sweeps.depth: has no trials; give `grid`, `trials`, `sample` or `search`"),
    ("sweeps.depth.grid.lr", [], "sweeps.depth.grid.lr"),
    ("sweeps.depth.grid.lr", {"start": 3, "stop": 1}, "stop (1) is below start (3)"),
    (
        "sweeps.depth.grid.lr",
        {"start": 3, "stop": 4, "stepp": 1},
        "sweeps.depth.grid.lr.stepp: unknown key; did you mean 'step'?",
    ),
    ("sweeps.depth.grid.lrr", [1], "sweeps.depth.grid.lrr: unknown key; did you mean 'lr'?"),
    ("sweeps.depth.grid.model_args..x", [1], "'model_args..x' is not a key"),
    ("sweeps.depth.grid.epochs.x", [1], "epochs"),
    ("sweeps.depth.trials", [{"lr": 0.1}, {"batch_size": 0}], "sweeps.depth.trials.1.batch_size"),
    ("sweeps.depth.sample", {"count": 2, "values": {"lr": {"low": 0, "high": 1, "log": True}}}, "starts above 0"),
    ("sweeps.depth.slots", {"gpus_per_node": 2, "gpus_per_trial": 4}, "does not fit a node of 2"),
    ("sweeps.depth.slots", {"gpus_per_node": 4, "gpus_per_trial": 1.5}, "whole number of GPUs"),
    (
        "sweeps.depth.slots",
        {"gpus_per_node": 4, "gpus_per_trial": 2},
        "sweeps.depth: gpus_per_trial: 2, but a training by `train` uses one GPU; set gpus_per_trial: 1, or",
    ),
    (
        "sweeps.depth.cost",
        "epoch * batch_size",
        "sweeps.depth.cost: 'epoch * batch_size' cannot be evaluated for lr = 0.1: there is no key 'epoch'; did you "
        "mean 'epochs'?",
    ),
    ("sweeps.depth.cost", "model_args.blocks", "there is no key 'model_args.blocks'; known: "),
    ("sweeps.depth.cost", "2 * model", "cost: '2 * model' cannot be evaluated for lr = 0.1: model is 'resnet'"),
    ("sweeps.depth.cost", "epochs *", "sweeps.depth.cost: 'epochs *' cannot be evaluated for lr = 0.1: invalid syntax"),
    ("sweeps.depth.cost", "epochs / (0.2 - lr)", "cannot be evaluated for lr = 0.2: "),
    ("sweeps.depth.cost", "9 ** 9 ** 9 ** 9", "cannot be evaluated"),
    ("sweeps.depth.cost", "1e400", "sweeps.depth.cost: '1e400' cannot be evaluated for lr = 0.1: it is inf"),
    ("sweeps.own", {"command": "./x {n}", "args": {"n": "8"}, "cost": "n"}, "cost: 'n' cannot be evaluated: n is '8'"),
    (
        "sweeps.own",
        {"function": "a:b", "search": {"trials": 2, "values": {"n": [1, "two", 3]}}, "cost": "n * 2"},
        "sweeps.own.cost: 'n * 2' cannot be evaluated for n = 'two': n is 'two', not a number",
    ),
    (
        "sweeps.found",
        {"dataset": "digits", "search": {"trials": 2, "values": {"optimizer": ["sgd", "addam", "adam"], "lr": [1]}}},
        "sweeps.found.search.optimizer: 'addam' is not known; did you mean 'adam'?",
    ),
    ("scaling.study.scales", ["1x1", "2by2"], "scaling.study.scales.1: '2by2' does not fit; a scale is written"),
    ("scaling.study.scales", ["1x1", "1x1"], "a scale is listed twice"),
    ("scaling.study.mode", "strog", "scaling.study.mode: 'strog' is not known; did you mean 'strong'?"),
    ("trees.trees.models", ["xgbost"], "trees.trees.models.0: 'xgbost' is not known; did you mean 'xgboost'?"),
    ("pricing.gpu_hour", -1, "pricing.gpu_hour: input should be greater than or equal to 0"),
    ("sweeps.own", {"command": "./x", "train": {"lr": 1}}, "sweeps.own: give train or command, not both"),
    ("sweeps.depth.metrics", {"file": "m.json"}, "sweeps.depth: metrics is for a command"),
    ("sweeps.depth.metric", "rmse", "sweeps.depth: metric is rmse, which no trial tells; known: epoch, lr, train_loss"),
    (
        "sweeps.own",
        {"function": "os:getcwd", "metric": "rmse", "search": {"trials": 2, "values": {"x": [1]}, "metric": "mae"}},
        "sweeps.own: the sweep's metric is rmse, but that of search is mae: give it once",
    ),
    (
        "sweeps.own",
        {"function": "os:getcwd", "metric": "r", "mode": "min", "stop": {"method": "asha", "mode": "max"}},
        "sweeps.own: the sweep's mode is min, but that of stop is max: give it once",
    ),
    ("sweeps.depth.search", {"trials": 2, "values": {"lr": [1]}}, "give search, or grid, trials and sample"),
    ("sweeps.own", {"command": "./x {lr}"}, "the command has {lr}, which is neither varied nor in `args`"),
    (
        "sweeps.own",
        {"command": "./x", "grid": {"lr": [1]}},
        "lr is not in the command: write {lr} where it is to stand",
    ),
    ("sweeps.own", {"command": "./x {seconds}", "grid": {"seconds": [1]}}, "seconds is a column of the tables"),
    ("sweeps.own", {"command": "./x {trial}", "args": {"trial": 1}}, "trial is a column of the tables"),
    ("sweeps.own", {"command": "./x {resume_from}"}, "`resume_from` needs `checkpoint`"),
    ("sweeps.own", {"command": "./x", "stop": {"method": "asha"}}, "search and stop need to know the metrics"),
    ("sweeps.own", {"command": "./x", "metrics": {"pattern": "acc ([0-9"}}, "is not a regular expression"),
    ("sweeps.own", {"command": "./x", "metrics": {"pattern": "acc .*"}}, "names no metric: write a group as"),
    ("sweeps.own", {"command": "./x", "metrics": {"file": "m.txt"}}, "'m.txt' does not fit; a file of metrics"),
    ("sweeps.own", {"function": "train"}, "'train' does not fit; a function is written package.module:name"),
    ("sweeps.own", {"function": "a:b", "slots": {"gpus_per_trial": "auto"}}, "gpus_per_trial: auto is for `train`"),
    ("sweeps.own", {}, "sweeps.own: a training needs a `dataset`; or give a `command` or a `function`"),
    ("scaling.own", {"script": "t.py", "train": {"lr": 1}, "scales": ["1x1"]}, "give train or script, not both"),
    ("scaling.own", {"script": "t.py {lr}", "scales": ["1x1"]}, "the script has lr in braces, which is not in `args`"),
    ("scaling.own", {"launcher": "srun", "scales": ["1x1"], "dataset": "digits"}, "launcher is for a script"),
    (
        "sweeps.own",
        {"dataset": "digits", "search": {"trials": 2, "metric": "rmse", "values": {"lr": [1]}}},
        "sweeps.own: search.metric is rmse, which no trial tells; known: epoch, lr, train_loss",
    ),
    (
        "sweeps.own",
        {"command": "./x", "metrics": {"pattern": "acc (?P<acc>.*)"}, "stop": {"method": "asha"}},
        "sweeps.own: stop.metric is val_accuracy, which no trial tells; known: acc",
    ),
    ("sweep", {}, "sweep: unknown key; did you mean 'sweeps'?"),
]


def with_mistake(config: dict, place: str, value: object) -> dict:
    """The config with one value changed; what comes after `grid` is one key, dots and all."""
    changed = copy.deepcopy(config)
    head, grid, key = place.partition(".grid.")
    parts = [*head.split("."), "grid", key] if grid else place.split(".")
    inner = changed
    for part in parts[:-1]:
        inner = inner.setdefault(part, {})
    inner[parts[-1]] = value
    return changed


def test_a_good_config_is_accepted():
    assert check_config(GOOD).sweeps["depth"].train.model == "resnet"


@pytest.mark.parametrize(("place", "value", "message"), MISTAKES, ids=[f"{m[0]}-{i}" for i, m in enumerate(MISTAKES)])
def test_a_mistake_is_reported_with_place_and_remedy(place, value, message):
    with pytest.raises(ConfigError) as caught:
        check_config(with_mistake(GOOD, place, value))
    assert message in str(caught.value)
    assert str(caught.value).startswith("1 error in config"), "one mistake is one error"


def test_all_mistakes_are_reported_at_once():
    wrong = GOOD
    for place, value in [("sweeps.depth.tran", {}), ("scaling.study.mode", "x"), ("trees.trees.models", ["y"])]:
        wrong = with_mistake(wrong, place, value)
    with pytest.raises(ConfigError) as caught:
        check_config(wrong)
    assert str(caught.value).startswith("3 errors in config")


def test_strong_scaling_must_share_the_batch_evenly():
    study = {"dataset": "digits", "scales": ["1x1", "1x3"], "mode": "strong", "train": {"batch_size": 64}}
    with pytest.raises(ConfigError, match="64 cannot be shared evenly at 1x3"):
        check_config({**GOOD, "scaling": {"study": study}})


def test_numbers_that_yaml_reads_as_text_are_numbers():
    config = check_config(with_mistake(GOOD, "sweeps.depth.train.lr", "1e-3"))
    assert config.sweeps["depth"].train.lr == 0.001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("sweeps: {}\nsweeps: {}", "the key 'sweeps' is given twice"),
        ("- 1", "the file"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.yaml: cannot be read \(No such file"):
        read_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("slots", "count"),
    [
        ({"gpus_per_node": 4}, 4),
        ({"nodes": 2, "gpus_per_node": 2, "gpus_per_trial": 2}, 2),
        ({"gpus_per_node": 2, "gpus_per_trial": 0.25}, 8),
        ({"gpus_per_node": 1, "gpus_per_trial": 0.3}, 3),
        ({"gpus_per_node": 8, "gpus_per_trial": 3}, 2),
    ],
)
def test_slots_never_share_a_gpu_unevenly(slots, count):
    assert Slots.model_validate(slots).count == count


def test_schema_and_option_tables_are_current():
    done = subprocess.run([sys.executable, ROOT / "scripts/options.py", "--check"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configs_are_valid(path):
    read_config(path)


OWN = {"function": "os:getcwd"}
SEARCH = {"trials": 2, "values": {"x": [1, 2]}}
TOLD = ["accuracy", "rmse"]


@pytest.mark.parametrize(
    ("sweep", "judged"),
    [
        ({"dataset": "d"}, ("val_accuracy", "max")),
        ({"dataset": "d", "metric": "val_loss"}, ("val_loss", "min")),
        (OWN, ("accuracy", None)),
        ({**OWN, "mode": "min"}, ("accuracy", "min")),
        ({**OWN, "metric": "rmse"}, ("rmse", None)),
        ({**OWN, "metric": "rmse", "mode": "max"}, ("rmse", "max")),
        ({**OWN, "metric": "nowhere", "mode": "min"}, ("accuracy", None)),
        ({**OWN, "search": {**SEARCH, "metric": "rmse"}}, ("rmse", "min")),
        ({**OWN, "search": {**SEARCH, "metric": "rmse", "mode": "max"}}, ("rmse", "max")),
        ({**OWN, "metric": "rmse", "search": SEARCH, "stop": {"method": "asha"}}, ("rmse", "min")),
        ({**OWN, "mode": "min", "stop": {"method": "asha", "metric": "accuracy"}}, ("accuracy", "min")),
    ],
)
def test_best_is_what_the_metric_and_mode_of_the_sweep_say(sweep, judged):
    made = Sweep.model_validate(sweep)
    told = ["val_loss", "val_accuracy"] if made.trains else TOLD
    assert made.judged_by(told) == judged
    assert Sweep.model_validate(made.model_dump(exclude_unset=True)).judged_by(told) == judged
    for part in (made.search, made.stop):
        assert part is None or (part.metric, part.mode) == judged, "search and stop go by the same"


def test_of_programs_that_tell_nothing_nothing_is_best():
    assert Sweep.model_validate(OWN).judged_by([]) is None
