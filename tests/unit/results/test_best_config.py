"""best.yaml: the same trial again, whatever its sweep looks like; and the command line to paste."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from project import ROOT
from sweep_journals import record_draws, session_of
from trainyard.config.load import check_config, read_config
from trainyard.config.parser import ConfigError
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import expand
from trainyard.planning.history import read_state
from trainyard.planning.journal import Ended, Started, Suggested
from trainyard.planning.plan import plan_sweep
from trainyard.programs.wandb_runs import wandb_environment
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import (
    find_files,
    folder_of,
    list_commands,
    paste_line,
    study_name,
    trial_line,
    write_best,
)
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.training.sampler import batch_sizes

TRAIN = {"dataset": "d", "train": {"model": "cnn", "model_args": {"width": 4}, "lr": 0.1}}
ATTRS = {"selection": "of other trials"}
COMMAND = {"command": "train --lr {lr}", "grid": {"lr": [0.1, 0.2]}}
SWEEPS = {
    "grid": {**TRAIN, "grid": {"lr": [0.1, 1e-5], "model_args.width": {"start": 4, "stop": 8}, "seed": [1, 2]}},
    "a value that is the default": {**TRAIN, "grid": {"epochs": [1], "seed": [0]}},
    "sections": {**TRAIN, "trials": [{"augment": {"flip": True}}, {"schedule": {"name": "cosine"}}, {}]},
    "sample": {**TRAIN, "sample": {"count": 3, "values": {"lr": {"low": 1e-7, "high": 1, "log": True}}}},
    "stop": {**TRAIN, "grid": {"lr": [0.1, 0.2]}, "stop": {"method": "asha"}, "metric": "val_loss"},
    "search": {**TRAIN, "search": {"trials": 2, "values": {"lr": {"low": 0.1, "high": 1}}}, "metric": "val_loss"},
    "repeats": {**TRAIN, "grid": {"lr": [0.1, 0.2]}, "repeats": 3},
    "budget": {**TRAIN, "grid": {"lr": [0.1, 0.2]}, "budget": {"until": "2020-01-01 08:00"}},
    "slots": {**TRAIN, "grid": {"lr": [0.1, 0.2]}, "slots": {"jobs": 2, "gpus_per_node": 8, "cpus_per_trial": 3}},
    "without GPUs": {**TRAIN, "grid": {"lr": [0.1]}, "slots": {"cpus": 4}},
    "auto": {**TRAIN, "grid": {"lr": [0.1, 0.2]}, "slots": "auto", "goal": "cheapest", "cost": "epochs"},
    "shared": {**TRAIN, "grid": {"lr": [0.1, 0.2]}, "slots": {"gpus_per_trial": 0.5, "mps": "auto"}},
    "several GPUs": {**TRAIN, "grid": {"accumulation": [1, 2]}, "slots": {"gpus_per_node": 4, "gpus_per_trial": 2}},
    "several nodes and GPUs": {
        **TRAIN, "grid": {"accumulation": [1, 2]}, "slots": {"gpus_per_node": 2, "nodes_per_trial": 2},
    },
    "patience": {**TRAIN, "train": {"patience": 2}, "metric": "val_loss", "trials": [{}]},
    "retrain": {**TRAIN, "grid": {"lr": [0.1, 0.2]}, "retrain": 2},
    "command": {**COMMAND, "metric": "rmse", "mode": "max", "slots": {"gpus_per_node": 4, "gpus_per_trial": 2}},
    "texts": {
        "command": ["train", "{text}", "{file}"],
        "args": {"file": "a: b # c"},
        "grid": {"text": ["1e-5", "012", "1:30", "yes", "null", "", "2024-01-01", "é\n", " x", "~", "0x1F", "\a"]},
    },
    "lines": {"command": "cd /tmp\ntrain --lr {lr} \\\n  --n 3\n", "grid": {"lr": [0.1]}},
    "nested": {"function": "os:getcwd", "args": {"a": {"b": [1, {"c": None}]}}, "trials": [{"a.d": 1}, {"a.d": 2}]},
    "one call": {"function": "os:getcwd"},
    "stopped command": {
        **COMMAND,
        "metrics": {"pattern": "rmse (?P<rmse>{number})"},
        "stop": {"method": "median"},
        "metric": "rmse",
        "max_failed_fraction": 0,
    },
}  # fmt: skip


def config_of(sweep, name="s"):
    datasets = {"d": {"source": "digits"}, "other": {"source": "digits"}}
    return check_config({"datasets": datasets, "sweeps": {name: sweep, "t": COMMAND}, "pricing": {"gpu_hour": 2.0}})


def finish(config, results, number, name="s"):
    """Finish one trial of the sweep `s`; returns its identity and the state of the sweep."""
    sweep, folder = config.sweeps[name], results / f"sweeps/{name}"
    if sweep.search:
        key = read_state(sweep, name, results).space.search_key
        record_draws(folder, Suggested(search=key, values={"lr": 0.25}, params={"lr": 0.25}, attrs={}))
    trial = list(read_state(sweep, name, results).trials)[number]
    with session_of(folder) as journal:
        metrics = dict.fromkeys(["val_loss", "val_accuracy", "rmse"], 0.5)
        journal.record(Started(trial=trial, attempt=1, generation=2))
        journal.record(Ended(trial=trial, attempt=1, status=TrialStatus.FINISHED, seconds=1.0, metrics=metrics))
    return trial, read_state(sweep, name, results)


def write(config, results, number=0, name="s"):
    trial, state = finish(config, results, number, name)
    return trial, write_best(config, state, answer_sweep(state))


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
def test_the_best_configuration_has_a_sweep_of_its_own_with_all_its_seeds(tmp_path, sweep, number):
    config = config_of(sweep)
    trial, path = write(config, tmp_path, 0 if "search" in sweep else number)
    best = read_config(path)
    assert list(best.sweeps) == ["s-best"]
    assert list(best.datasets) == (["d"] if "dataset" in sweep else [])
    plan = plan_sweep(best, "s-best", tmp_path)
    names = list(plan.state.trials)
    assert trial in names, "the same identity"
    (configuration,) = rank_sweep(plan.state).configurations
    seeds = 3 if "repeats" in sweep else len(sweep.get("grid", {}).get("seed", [0]))
    assert len(names) == len(configuration.trials) == seeds, "it differs in the seed only"
    assert plan.forecast.pending == names, "in the same folder, they are trained again"
    assert plan.slots.count == 1
    assert best.sweeps["s-best"].target[0] in (None, config.sweeps["s"].target[0])
    assert best.sweeps["s-best"].slots.cpus_per_trial == config.sweeps["s"].slots.cpus_per_trial


def test_further_seeds_that_ran_are_among_those_of_the_best(tmp_path):
    config = config_of({**TRAIN, "grid": {"lr": [0.1, 0.2]}, "repeats": 2})
    _, state = finish(config, tmp_path, 0)
    drawn = [Suggested(search=state.space.seeds_key, values={"lr": 0.1, "seed": seed}, params={}, attrs=ATTRS)
             for seed in (2, 3)]  # fmt: skip
    record_draws(tmp_path / "sweeps/s", *drawn)
    with session_of(tmp_path / "sweeps/s") as journal:
        (name,) = {state.space.suggestion(drawn[0]).name}
        journal.record(Started(trial=name, attempt=1))
        journal.record(Ended(trial=name, attempt=1, status=TrialStatus.FINISHED, seconds=1.0,
                             metrics={"val_accuracy": 0.4}))  # fmt: skip
    state = read_state(config.sweeps["s"], "s", tmp_path)
    best = read_config(write_best(config, state, answer_sweep(state)))
    assert best.sweeps["s-best"].trials == [{"lr": 0.1, "seed": seed} for seed in (0, 1, 2)], "seed 3 has not run"


@pytest.mark.parametrize("sweep", [SWEEPS[name] for name in SWEEPS if "train" in SWEEPS[name] and "GPUs" not in name])
def test_the_best_training_is_a_scaling_study_with_the_same_spec(tmp_path, sweep):
    _, path = write(config_of(sweep), tmp_path)
    best = read_config(path)
    (study,) = best.scaling.values()
    spec = expand(best.sweeps["s-best"]).trials[0].spec
    assert study.train_at("1x1") == spec.judged_by(sweep.get("metric", "val_accuracy"))
    assert study.scales == ["1x1"]
    assert study.cpus_per_gpu == best.sweeps["s-best"].slots.cpus_per_trial


@pytest.mark.parametrize(("sweep", "scale"), [("several GPUs", "1x2"), ("several nodes and GPUs", "2x2")])
def test_the_best_training_on_several_gpus_is_a_scale_with_the_same_global_batch(tmp_path, sweep, scale):
    _, path = write(config_of(SWEEPS[sweep]), tmp_path, 1)
    best = read_config(path)
    (study,) = best.scaling.values()
    on_one = batch_sizes(expand(best.sweeps["s-best"]).trials[0].spec)
    ranks = best.sweeps["s-best"].slots.ranks
    assert (best.sweeps["s-best"].slots.scale, study.scales) == (scale, [scale])
    assert batch_sizes(study.train, world_size=ranks, mode=study.mode) == replace(
        on_one, per_rank=on_one.per_rank // ranks, micro=on_one.micro // ranks, world_size=ranks
    )


def test_the_best_trial_of_a_sweep_without_gpus_requests_none(tmp_path):
    _, path = write(config_of(SWEEPS["without GPUs"]), tmp_path)
    best = read_config(path)
    assert (best.sweeps["s-best"].slots.gpus, best.sweeps["s-best"].slots.count) == (0, 1)
    assert best.scaling == {}, "which runs on GPUs"


def test_the_best_config_of_a_ready_made_sweep_is_read_as_it_is_written(tmp_path):
    config = read_config(ROOT / "config/depth-sweep.yaml")
    (name,) = config.sweeps
    trial, path = write(config, tmp_path, 3, name)
    assert list(expand(read_config(path).sweeps[f"{name}-best"]).by_name("not staged")) == [trial]
    assert yaml.safe_load(path.read_text())["sweeps"][f"{name}-best"]["trials"] == [{"model_args.blocks": 16}]


def test_a_sweep_with_a_long_name_has_a_best_config(tmp_path):
    name = "x" * 64
    _, path = write(config_of(SWEEPS["grid"], name), tmp_path, name=name)
    assert list(read_config(path).sweeps) == ["x" * 59 + "-best"]


@pytest.mark.parametrize("name", ["s", "x" * 64])
def test_the_name_of_the_best_is_that_of_no_other_study(tmp_path, name):
    """In one folder of results, they would share trials."""
    own, numbered = f"{name[:59]}-best", f"{name[:57]}-best-2"
    sections = {"sweeps": {name: COMMAND, own: COMMAND}, "scaling": {numbered: {"script": "t.py", "scales": ["1x1"]}}}
    _, path = write(config := check_config(sections), tmp_path, name=name)
    (best,) = read_config(path).sweeps
    assert best == study_name(config, name) == numbered[:-1] + "3"
    assert f"# Sweep {best} trains it again" in path.read_text()


def test_before_any_trial_has_finished_the_best_config_is_an_error_that_says_so(tmp_path):
    config = config_of(SWEEPS["grid"])
    state = read_state(config.sweeps["s"], "s", tmp_path)
    path = write_best(config, state, answer_sweep(state))
    assert path.read_text().startswith("# Sweep s: no trial has finished with val_accuracy\n\nsweeps: ")
    with pytest.raises(ConfigError, match="'Sweep s: no trial has finished with val_accuracy'"):
        read_config(path)


SHOWN = """import json, os, sys
print(json.dumps([sys.argv[1:], os.path.isdir(os.environ.get("DIR", "/")), os.getcwd()]))
"""


@pytest.mark.parametrize(
    ("command", "args", "given"),
    [
        ("python3 show.py --lr {lr} {text}", {"text": "it's $HOME"}, ["--lr", "0.1", "it's $HOME"]),
        (["python3", "show.py", "{lr}", "{text}"], {"text": "a b"}, ["0.1", "a b"]),
        ("python3 show.py {lr} {cpus} {gpus} {attempt}\n", {}, ["0.1", "3", "1", "1"]),
        ("python3 show.py --port {port} {args}", {"text": "a b"}, ["--port", "29500", "--text", "a b", "--lr", "0.1"]),
        ("export DIR={trial_dir}\npython3 show.py {lr} \\\n  {trial}", {}, ["0.1", "by-hand"]),
    ],
)
def test_the_line_to_paste_runs_the_command_with_its_values(tmp_path, command, args, given):
    """In a shell, in the folder where Trainyard ran."""
    (tmp_path / "show.py").write_text(SHOWN)
    config = config_of({"command": command, "args": args, "grid": {"lr": [0.1]}, "slots": {"cpus_per_trial": 3}})
    _, state = finish(config, tmp_path / "results", 0)
    line = paste_line(state, rank_sweep(state))
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert yaml.safe_load(done.stdout) == [given, True, str(tmp_path)]
    assert not line.endswith("\n"), "one line of the summary"


def test_the_line_to_paste_runs_in_a_folder_of_its_own_if_trials_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show.py").write_text(SHOWN)
    command = {"command": "python3 show.py {lr}", "grid": {"lr": [0.1]}, "workdir": "trial"}
    _, state = finish(config_of(command), tmp_path / "results", 0)
    line = paste_line(state, rank_sweep(state))
    done = subprocess.run(["bash", "-c", line], cwd="/", capture_output=True, text=True, check=True)
    assert yaml.safe_load(done.stdout) == [["0.1"], True, str(state.folder / "trials/by-hand")]


@pytest.mark.parametrize(
    "command", [{"command": "python3 env.py {lr}", "grid": {"lr": [0.1]}}, {"commands": "jobs.txt"}]
)
def test_the_line_to_paste_names_the_folder_to_a_program_that_reads_it(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    variable = "TRAINYARD_TRIAL_DIR"
    (tmp_path / "env.py").write_text(f"import os; print(os.path.isdir(os.environ['{variable}']))")
    (tmp_path / "jobs.txt").write_text(f'test -d "${variable}" && echo True\n')
    _, state = finish(config_of(command), tmp_path / "results", 0)
    line = paste_line(state, rank_sweep(state))
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout == "True\n"


def test_the_line_to_paste_gives_a_script_of_wandb_the_settings_of_the_trial(tmp_path):
    line = 'cat "$WANDB_SWEEP_PARAM_PATH"'
    trial, state = finish(config_of({"command": line, "metrics": "wandb", "grid": {"lr": [0.2]}}), tmp_path, 0)
    assert trial_line(state, trial) is None, "the file was removed"
    folder = folder_of(state, trial)
    folder.mkdir(parents=True)
    wandb_environment({}, {"lr": 0.2}, folder, run=trial, group="s")
    line = trial_line(state, trial)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert yaml.safe_load(done.stdout)["lr"] == {"value": 0.2}
    assert "WANDB_MODE=offline" in line
    assert "WANDB" in list_commands(state, trial)[-1], "which `plan` shows"


def test_the_line_to_paste_has_what_setup_exports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    setup = "export DATA=/data\ncd /\ntrue &  # a server"
    config = config_of({"command": "echo $DATA {lr} $PWD", "grid": {"lr": [0.1]}, "setup": setup})
    _, state = finish(config, tmp_path, 0)
    line = paste_line(state, rank_sweep(state))
    done = subprocess.run(["bash", "-c", line], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout == f"/data 0.1 {tmp_path}\n"


def test_the_line_to_paste_takes_the_settings_of_the_trial_and_no_other_file(tmp_path):
    config = config_of({"command": "cat {settings}", "settings": "yaml", "grid": {"lr": [0.1]}})
    trial, state = finish(config, tmp_path, 0)
    folder = folder_of(state, trial)
    folder.mkdir(parents=True)
    (folder / "settings.json.bak").touch()
    assert paste_line(state, rank_sweep(state)) is None
    (folder / "settings.yaml").touch()
    assert paste_line(state, rank_sweep(state)) == f"cat {folder / 'settings.yaml'}"


def test_the_line_to_paste_runs_in_the_environment_of_the_sweep(tmp_path):
    command = "python3 -c 'import sys; print(sys.prefix)' {lr}"
    config = config_of({"command": command, "grid": {"lr": [0.1]}, "env": "trainyard"})
    _, state = finish(config, tmp_path, 0)
    line = paste_line(state, rank_sweep(state))
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout == f"{sys.prefix}\n"


def test_best_config_says_what_is_best_and_what_to_do(tmp_path):
    config = config_of({**COMMAND, "grid": {"lr": [0.1, 0.2], "seed": [1, 2]}, "command": "train {lr}\n{seed}"})
    trial, state = finish(config, tmp_path, 1)
    ranking = rank_sweep(state)
    assert describe_ranking(ranking) == [
        f"best mean val_accuracy (highest): 0.5 (n = 1 of 2) with lr = 0.1; its best trial is {trial} (seed = 2): 0.5"
    ]
    text = write_best(config, state, answer_sweep(state)).read_text()
    assert text.startswith(f"# Sweep s: {describe_ranking(ranking)[0]}\n")
    assert "# By hand:\n# train 0.1\n# 2\n" in text
    assert "# Sweep s-best trains it again, with its 2 seeds. In " in text
    assert "scaling" not in text


def test_its_commands_name_the_config_that_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    _, best = write(config_of(SWEEPS["grid"]), Path("results"))
    assert "# trainyard run --config results/sweeps/s/best.yaml -- scaling\n" in best.read_text()


def test_a_metric_that_no_trial_has_reported_is_not_replaced(tmp_path):
    config = config_of({**COMMAND, "metric": "acuracy"})
    _, state = finish(config, tmp_path, 1)
    answer = answer_sweep(state)
    assert answer.lines == [
        "no ranking: no trial has reported acuracy, the metric of the sweep, but val_accuracy: set `metric` to it"
    ]
    assert answer.ranking.best_trial is None
    assert "trials" not in write_best(config, state, answer).read_text().partition("\nsweeps:")[2]


def test_a_seed_that_no_configuration_repeats_is_one_of_its_values(tmp_path):
    trials = [{"lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 2}]
    trial, state = finish(config_of({"command": "train {lr} {seed}", "trials": trials}), tmp_path, 1)
    (line,) = describe_ranking(rank_sweep(state))
    assert line == f"best val_accuracy (highest): 0.5, by trial {trial} with lr = 0.2, seed = 2"


def test_the_files_of_the_best_trial_are_its_newest_checkpoint_or_its_folder(tmp_path):
    config = config_of({**COMMAND, "checkpoint": "*.pt"})
    trial, state = finish(config, tmp_path, 1)
    folder = state.folder / "trials" / f"{trial}-2"
    folder.mkdir(parents=True)
    (folder / "output-1.log").touch()
    assert find_files(state, rank_sweep(state)) is None, "the program has written elsewhere"
    (folder / "metrics.csv").touch()
    assert find_files(state, rank_sweep(state)) == folder
    (folder / "last.pt").write_text("weights")
    assert find_files(state, rank_sweep(state)) == folder / "last.pt"
    _, trained = finish(config_of(SWEEPS["grid"]), tmp_path / "b", 0)
    assert find_files(trained, rank_sweep(trained)) is None, "no checkpoint of a finished training is kept"
