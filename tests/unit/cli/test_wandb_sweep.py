"""A sweep of Weights & Biases as a sweep of the config: its trials are what agents would run, with the same options."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
from trainyard.cli.wandb_sweep import import_wandb_sweep
from trainyard.config.load import check_config
from trainyard.config.placeholders import build_argv
from trainyard.config.trials import expand
from trainyard.utils.errors import UserError

METRIC = {"name": "val/loss", "goal": "minimize"}


def imported(**options):
    """The sweep of a W&B configuration, which is valid."""
    found = import_wandb_sweep({"program": "train.py", "method": "random", "metric": METRIC, **options})
    found.text(Path("sweep.yaml"))
    return found


def range_of(**parameter):
    """What an agent would draw a parameter from, and the notes on it."""
    found = imported(parameters={"x": parameter, "y": {"values": [1, 2]}}, run_cap=5)
    return found.sweep["sample"]["values"]["x"], [note for note in found.notes if note.startswith("`x`")]


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ({"values": [1, "a", 0.5]}, [1, "a", 0.5]),
        ({"values": [1, 2], "distribution": "categorical"}, [1, 2]),
        ({"min": 1, "max": 8}, {"low": 1, "high": 8, "integer": True}),
        ({"min": 1, "max": 8, "distribution": "int_uniform"}, {"low": 1, "high": 8, "integer": True}),
        ({"min": 0, "max": 0.5}, {"low": 0, "high": 0.5}),
        ({"min": 1, "max": 2, "distribution": "uniform"}, {"low": 1, "high": 2}),
        ({"min": 1e-5, "max": 0.1, "distribution": "log_uniform_values"}, {"low": 1e-5, "high": 0.1, "log": True}),
        ({"min": math.log(0.5), "max": 0, "distribution": "log_uniform"}, {"low": 0.5, "high": 1, "log": True}),
        ({"min": 32, "max": 128, "q": 32, "distribution": "q_uniform"}, {"low": 32, "high": 128, "step": 32}),
        ({"min": 0.1, "max": 0.3, "q": 0.1, "distribution": "q_uniform"}, {"low": 0.1, "high": 0.3, "step": 0.1}),
        ({"min": 1, "max": 9, "distribution": "q_uniform"}, {"low": 1, "high": 9, "integer": True}),
        (
            {"min": 8, "max": 512, "distribution": "q_log_uniform_values"},
            {"low": 8, "high": 512, "log": True, "integer": True},
        ),
    ],
)
def test_kinds_of_parameters_are_those_of_the_config(parameter, expected):
    found, notes = range_of(**parameter)
    assert found == expected
    assert notes == []


@pytest.mark.parametrize(
    ("parameter", "expected", "note"),
    [
        ({"distribution": "normal", "mu": 1, "sigma": 0.25}, {"low": 0.5, "high": 1.5}, "two standard deviations"),
        ({"distribution": "log_normal"}, {"low": 0.135335283237, "high": 7.38905609893, "log": True}, "log_normal"),
        ({"distribution": "q_normal", "mu": 6, "sigma": 2}, {"low": 2, "high": 10, "integer": True}, "normal"),
        (
            {"distribution": "q_log_uniform_values", "min": 1, "max": 4, "q": 1.5},
            {"low": 1, "high": 4, "log": True},
            "without its steps of 1.5",
        ),
        ({"values": [1, 2], "probabilities": [0.9, 0.1]}, [1, 2], "equally probable"),
    ],
)
def test_what_the_config_cannot_have_is_noted(parameter, expected, note):
    found, notes = range_of(**parameter)
    assert found == expected
    assert len(notes) == 1
    assert note in notes[0]


def command_lines(found, **placeholders):
    """The words that each trial runs."""
    trials = expand(check_config({"sweeps": {"s": found.sweep}}).sweeps["s"]).trials
    return [shlex.split(build_argv(trial.spec.command, trial.spec.args, placeholders)[-1]) for trial in trials]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (None, "python train.py --learning-rate=0.1 --dataset=c10 --opt.name adam --fp16"),
        (["${env}", "python3", "-u", "${program}", "${args}", "--no-amp"],
         "python3 -u train.py --learning-rate=0.1 --dataset=c10 --opt.name adam --fp16 --no-amp"),
        (["torchrun", "--nproc-per-node", 2, "${program}", "${args_no_boolean_flags}"],
         "torchrun --nproc-per-node 2 train.py --learning-rate=0.1 --dataset=c10 --opt.name adam --fp16"),
        (["${interpreter}", "${program}", "${args_no_hyphens}"],
         "python train.py learning-rate=0.1 dataset=c10 opt.name=adam fp16=true"),
        (["${interpreter}", "${program}", "${args_override_hydra}"],
         "python train.py ++learning-rate=0.1 ++dataset=c10 ++opt.name=adam ++fp16=true"),
        (["${interpreter}", "${program}", "--by=${envvar:ME}-x", "a b", "${args_no_equals}"],
         "python train.py --by=$ME-x 'a b' --learning-rate 0.1 --dataset c10 --opt.name adam --fp16"),
    ],
)  # fmt: skip
def test_the_command_passes_parameters_as_an_agent_does(command, expected):
    parameters = {
        "learning-rate": {"values": [0.1, 0.2]},
        "dataset": {"value": "c10"},
        "opt": {"parameters": {"name": {"value": "adam"}}},
        "fp16": {"value": True},
    }
    found = imported(method="grid", parameters=parameters, **({"command": command} if command else {}))
    first, second = command_lines(found)
    assert first == shlex.split(expected)
    assert second == [word.replace("0.1", "0.2") for word in first]


CONFIG_ONLY = "import wandb\nwandb.init()\nlr = wandb.config.lr\n"
OPTIONS = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\nprint(p.parse_args())\n"


@pytest.mark.parametrize(
    ("script", "command", "expected"),
    [
        (CONFIG_ONLY, None, "python train.py"),
        (CONFIG_ONLY, ["${env}", "python", "${program}", "${args}", "--x"], "python train.py --x"),
        (OPTIONS, None, "python train.py --lr 0.1"),
        (f"import wandb\n{OPTIONS}", ["${interpreter}", "${program}"], "python train.py"),
        (None, None, "python train.py --lr 0.1"),
    ],
)
def test_parameters_are_passed_to_a_script_that_may_read_them(tmp_path, monkeypatch, script, command, expected):
    monkeypatch.chdir(tmp_path)
    if script:
        Path("train.py").write_text(script)
    parameters = {"lr": {"values": [0.1, 0.2]}}
    found = imported(method="grid", parameters=parameters, **({"command": command} if command else {}))
    assert command_lines(found)[0] == expected.split()
    is_passed = expected.endswith("0.1") or script == CONFIG_ONLY
    assert is_passed or any("where it reads --lr instead of `wandb.config`" in note for note in found.notes), (
        found.notes
    )


def test_a_command_that_is_text_is_not_used_as_in_wandb():
    found = imported(command="uv run python other.py", parameters={"lr": {"values": [0.1, 0.2]}})
    assert found.sweep["command"] == imported(parameters={"lr": {"values": [0.1, 0.2]}}).sweep["command"]
    assert "`command` is not a list: W&B does not use it either" in found.notes


@pytest.mark.parametrize("is_flat", [True, False])
def test_a_flat_name_with_a_dot_is_noted(is_flat):
    values = {"values": [1, 2]}
    parameters = {"model.width": values} if is_flat else {"model": {"parameters": {"width": values}}}
    notes = [note for note in imported(parameters=parameters).notes if note.startswith("`model.width`")]
    assert len(notes) == is_flat


def test_values_keep_their_types_for_the_config_of_wandb():
    found = imported(method="grid", parameters={"a": {"values": [True, None, [1, 2], "x", 0.5]}})
    assert found.sweep["grid"]["a"] == [True, None, [1, 2], "x", 0.5]


def test_methods_become_grid_sample_and_search():
    lr = {"lr": {"min": 0.1, "max": 0.2}}
    assert imported(parameters=lr, run_cap=7).sweep["sample"] == {
        "count": 7,
        "values": {"lr": {"low": 0.1, "high": 0.2}},
    }
    searched = imported(method="bayes", parameters=lr)
    assert searched.sweep["search"]["trials"] == 20
    assert "there was no `run_cap`" in "".join(searched.notes)
    grid = imported(method="grid", parameters={"n": {"min": 1, "max": 3}, "k": {"values": [1, 2]}}, run_cap=2)
    assert grid.sweep["grid"] == {"n": {"start": 1, "stop": 3, "step": 1}, "k": [1, 2]}
    assert "`run_cap: 2`: a grid runs all" in "".join(grid.notes)


def test_hyperband_becomes_asha():
    parameters = {"lr": {"values": [1, 2]}}
    first = imported(parameters=parameters, early_terminate={"type": "hyperband", "min_iter": 3})
    assert first.sweep["stop"] == {"method": "asha", "grace_period": 3, "reduction_factor": 3}
    last = imported(parameters=parameters, early_terminate={"type": "hyperband", "max_iter": 27, "s": 2, "eta": 3})
    assert last.sweep["stop"]["grace_period"] == 3
    assert "Trainyard the `epoch` that is logged, else steps" in "".join(last.notes)


def test_the_file_of_parameters_is_a_file_of_settings_with_their_types(tmp_path):
    parameters = {
        "amp": {"values": [True, False]},
        "dataset": {"value": "a"},
        "lr": {"value": 1e-05},
        "net": {"parameters": {"n": {"value": 2}}},
    }
    command = ["${env}", "python", "${program}", "--config=${args_json_file}"]
    found = imported(command=command, parameters=parameters, method="grid")
    sweep = check_config({"sweeps": {"s": found.sweep}}).sweeps["s"]
    assert sweep.command == "python train.py --config={settings}"
    path = sweep.settings.write(tmp_path, expand(sweep).trials[0].spec.args)
    assert json.loads(Path(path).read_text()) == {
        "amp": True, "dataset": "a", "lr": 1e-05, "net": {"n": 2}
    }  # fmt: skip


def test_the_metric_is_the_one_that_is_logged():
    found = imported(parameters={"lr": {"values": [1, 2]}}, metric={"name": "val/acc", "goal": "maximize", "target": 1})
    assert (found.sweep["metric"], found.sweep["mode"], found.sweep["metrics"]) == ("val/acc", "max", "wandb")
    assert check_config({"sweeps": {"s": found.sweep}}).sweeps["s"].metrics.is_wandb
    assert "`metric.target`" in "".join(found.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": {"lr": 0.1}}, "parameters.lr: must be a mapping such as {value: 0.1}"),
        ({"parameters": {"lr": {"distribution": "log_uniform"}}}, "parameters.lr: log_uniform needs min and max"),
        ({"parameters": {"x": {"distribution": "zipf", "min": 1, "max": 2}}}, "parameters.x: there is no distribution"),
        (
            {"parameters": {"x": {"distribution": "beta"}}},
            "parameters.x: there is no distribution 'beta' here: give val",
        ),
        (
            {"command": ["python", "${program}", "${args_json}"]},
            "command: there is nothing like ${args_json}: pass the",
        ),
        (
            {"command": ["python", "${args_json_file}"], "parameters": {"net.depth": {"value": 1}}},
            "parameters.net.depth: a dotted name cannot be in the file of ${args_json_file} here",
        ),
        (
            {"command": ["python", "${args_json_file}"], "parameters": {"weight-decay": {"values": [1, 2]}}},
            "'weight-decay' is not valid; write names joined by dots",
        ),
        ({"method": "grid", "parameters": {"lr": {"min": 0.1, "max": 1}}}, "parameters.lr: a grid needs `values`"),
        ({"program": None}, "program: is required"),
        ({"method": "bayes", "metric": None, "parameters": {"x": {"min": 0, "max": 1}}}, "metric: bayes needs one"),
    ],
)
def test_what_is_wrong_or_has_no_counterpart_is_one_clear_error(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        imported(**options)
