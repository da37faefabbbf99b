"""Identities of trainings, as journals, checkpoints and tables have them.

A digest below that changes means that every user's finished trials would be trained again. If a change of the code
changes results, increment RESULT_VERSION, and these digests.
"""

from pathlib import Path

import pytest
from trainyard.config.load import ConfigError, check_config, read_config
from trainyard.config.trials import expand, result_digest
from trainyard.config.user_programs import code_digest
from trainyard.planning.trial_space import TrialSpace
from trainyard.utils.files import digest_of

ROOT = Path(__file__).parents[3]
EXAMPLE = {
    "datasets": {"digits": {"source": "digits"}},
    "sweeps": {
        "many": {
            "dataset": "digits",
            "train": {
                "model": "cnn", "epochs": 3, "lr": 0.01, "optimizer": "adamw", "weight_decay": 0.05, "patience": 2,
                "schedule": {"name": "cosine", "warmup_fraction": 0.1}, "metrics": ["top5_accuracy"],
                "augment": {"flip": True, "mixup": 0.2}, "precision": "bf16",
            },
            "grid": {"batch_size": [32, 64], "model_args.width": {"start": 8, "stop": 16, "step": 8}},
            "trials": [{"augment.cutmix": 0.1}, {"augment": {"crop_padding": 2}}],
            "sample": {"count": 2, "seed": 3, "values": {"lr": {"low": 1e-4, "high": 1e-1, "log": True}}},
            "stop": {"method": "asha"},
        },
        "trees": {"dataset": "digits", "trees": {"early_stopping": 5, "num_leaves": 15},
                  "grid": {"library": ["xgboost", "lightgbm"]}},
        "program": {"command": "train.py {args}", "args": {"lr": 0.1, "nested": {"depth": [1, 2]}}},
    },
    "scaling": {
        "ranks": {"dataset": "digits", "train": {"lr": 0.1}, "scales": ["1x1", "1x2"], "lr_scaling": "linear"},
        "script": {"script": "train.py --lr {lr}", "launcher": "accelerate", "args": {"lr": 0.1}, "scales": ["2x1"]},
    },
}  # fmt: skip


def identities(config):
    """The identities of everything that a config trains."""
    return {
        **{name: sorted(trial.identity("data") for trial in expand(sweep).trials)
           for name, sweep in config.sweeps.items()},
        **{name: [result_digest(study, run, "data") for scale in study.scales for run in study.runs(scale)]
           for name, study in config.scaling.items()},
    }  # fmt: skip


def test_identities_of_a_config_with_many_options():
    config = check_config(EXAMPLE)
    found = identities(config)
    assert {name: digest_of(names, length=10) for name, names in found.items()} == {
        "many": "5165989c14",
        "program": "523ed7aa40",
        "ranks": "e5d442dca0",
        "script": "44a3776fe5",
        "trees": "9df3d9a144",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("config", "624d5fc2b5"),
        ("depth-sweep", "b72382f7a6"),
        ("guide-scaling", "6bcb6225c8"),
        ("mnist-4x8", "bd614edbcf"),
        ("own-programs", "738554db88"),
        ("own-script", "0efe3795af"),
        ("tinyimagenet-resnet50", "d7a760959e"),
        ("trees-sweep", "d03d69cb00"),
    ],
)
def test_identities_of_the_ready_made_configs(name, expected):
    assert digest_of(identities(read_config(ROOT / f"config/{name}.yaml")), length=10) == expected


def test_the_content_of_code_identifies_a_trial_and_nothing_else_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("src/deep").mkdir(parents=True)
    Path("train.py").write_text("1")
    Path("src/deep/model.py").write_text("2")
    sweep = EXAMPLE["sweeps"]["program"]

    def names(**options):
        code_digest.cache_clear()  # as in another process
        found = check_config({"sweeps": {"program": {**sweep, **options}}}).sweeps["program"]
        space = TrialSpace(found, "data")
        return [*space.trials, space.digest]

    none, first = names(), names(code=["train.py", "src/"])
    assert not set(none) & set(first)
    Path("src/__pycache__").mkdir()
    Path("src/__pycache__/model.pyc").write_text("3")
    Path("other.py").write_text("4")
    assert names(code=["train.py", "src/"]) == first
    Path("src/deep/model.py").rename("src/model.py")
    assert not set(names(code=["train.py", "src/"])) & set(first), "a module has another name"
    Path("src/model.py").rename("src/deep/model.py")
    assert names(code=["train.py", "src/"]) == first
    Path("src/deep/model.py").write_text("5")
    assert not set(names(code=["train.py", "src/"])) & set(first)
    assert names() == none
    with pytest.raises(ConfigError, match=r"sweeps\.program\.code: .*missing\.py cannot be read \(No such file"):
        names(code=["missing.py"])
