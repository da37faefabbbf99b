"""`settings`: a file of a program, with the values of a trial at their places."""

import datetime
import json
import tomllib

import pytest
import yaml
from omegaconf import OmegaConf
from trainyard.config.load import ConfigError, as_given, check_config
from trainyard.config.trials import expand, result_digest

YAML = """
defaults: &optimizer {lr: 0.5, betas: [0.9, 0.999]}
optimizer: *optimizer
copy: *optimizer
amp: true
layers: [{width: 8}, {width: 9}]
schedule: {name: cosine}
weight: 1e-4  # text for PyYAML
day: 2024-01-01
0: zero
seed: 42
note: null
"""
LOADERS = {"json": json.loads, "yaml": yaml.safe_load, "yml": yaml.safe_load, "toml": tomllib.loads}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(YAML)
    (tmp_path / "base.json").write_text('{"optimizer": {"lr": 0.5}, "amp": true, "lrs": [1, 2], "note": "x"}')
    (tmp_path / "base.toml").write_text('amp = true\nday = "x"\n[optimizer]\nlr = 0.5\n[[layer]]\n"a b" = "é\\""\n')
    return tmp_path


def sweep_of(**options):
    options = {"command": "python train.py --config {settings}", "settings": "base.yaml", **options}
    return check_config({"sweeps": {"s": options}}).sweeps["s"]


def written(folder, sweep, trial=0):
    """What a program reads from the file of a trial."""
    path = sweep.settings.write(folder, expand(sweep).trials[trial].spec.args)
    return LOADERS[path.rpartition(".")[2]]((folder / path).read_text())


def test_a_trial_has_the_base_with_its_values_at_their_places_and_nothing_else_changed(folder):
    grid = {"optimizer.lr": [1e-05], "amp": [False], "layers.1.width": [4], "schedule": [None], "note": ["1e-3"]}
    sweep = sweep_of(grid=grid, args={"optimizer": {"betas": [0.5]}})
    before = yaml.safe_load(YAML)
    assert written(folder, sweep) == before | {
        "optimizer": {"lr": 1e-05, "betas": [0.5]}, "amp": False, "layers": [{"width": 8}, {"width": 4}],
        "schedule": None, "note": "1e-3",
    }  # fmt: skip
    assert before["weight"] == "1e-4"
    assert before["day"] == datetime.date(2024, 1, 1)
    assert expand(sweep).trials[0].values["layers.1.width"] == 4


AS_WRITTEN = """
a: 1e-3
b: '1e-3'
c: on
d: "on"
e: 010
f: 1_000
g: 1:30
h:
i: [~, 0x10, .5, !!str 7, !!float 1, !!int "7"]
yes: |
  two
  lines
"""


def test_what_a_trial_does_not_set_stays_as_written_for_whatever_version_of_yaml_the_program_reads(folder):
    (folder / "base.yaml").write_text(AS_WRITTEN + "lr: 1\nnote: 1\n")
    sweep = sweep_of(grid={"lr": [1e-05, 1e16]}, args={"note": "1e-3"})
    for number, value in enumerate((1e-05, 1e16)):
        path = sweep.settings.write(folder, expand(sweep).trials[number].spec.args)
        text = (folder / path).read_text()
        for line in AS_WRITTEN.splitlines()[1:8]:
            assert line in text.splitlines()
        for load in (yaml.safe_load, lambda text: OmegaConf.to_container(OmegaConf.create(text))):
            assert load(text) == load((folder / "base.yaml").read_text()) | {"lr": value, "note": "1e-3"}


@pytest.mark.parametrize("kind", ["json", "toml"])
def test_the_file_has_the_format_of_the_base_and_values_keep_their_types(folder, kind):
    sweep = sweep_of(settings=f"base.{kind}", grid={"optimizer.lr": [1e-05, 2.0, 1], "amp": [True, False]})
    before = LOADERS[kind]((folder / f"base.{kind}").read_text())
    for number, trial in enumerate(expand(sweep).trials):
        found = written(folder, sweep, number)
        assert found == before | {"optimizer": {"lr": trial.values["optimizer.lr"]}, "amp": trial.values["amp"]}
        assert type(found["amp"]) is bool
        assert type(found["optimizer"]["lr"]) is type(trial.values["optimizer.lr"])


def test_a_format_alone_is_a_file_with_the_arguments(folder):
    sweep = sweep_of(settings="json", args={"net": {"depth": 18}}, grid={"net.lr": [0.1], "amp": [False]})
    assert written(folder, sweep) == {"net": {"depth": 18, "lr": 0.1}, "amp": False}


def test_what_the_command_names_need_not_be_in_the_file(folder):
    command = "python train.py --config {settings} --seed {seed} --gpus {gpus} --fold {data.fold}"
    sweep = sweep_of(command=command, grid={"amp": [False], "seed": [1], "data.fold": [2]})
    found = written(folder, sweep)
    assert (found["amp"], found["seed"], "data" in found) == (False, 1, False)


def test_another_base_makes_other_trials_and_is_what_all_jobs_of_a_run_have(folder):
    config = {"sweeps": {"s": {"command": "x {settings}", "settings": "base.json", "grid": {"amp": [True]}}},
              "scaling": {"c": {"script": "t.py {settings}", "settings": "base.json", "scales": ["1x1"]}}}  # fmt: skip
    before = check_config(config)
    names = {expand(before.sweeps["s"]).trials[0].identity(""), result_digest(before.scaling["c"], "1x1", "")}
    (folder / "base.json").write_text('{"amp": true}')
    in_job, anew = check_config(as_given(before)), check_config(config)
    assert names == {
        expand(in_job.sweeps["s"]).trials[0].identity(""), result_digest(in_job.scaling["c"], "1x1", "")
    }  # fmt: skip
    assert written(folder, in_job.sweeps["s"])["note"] == "x"
    assert written(folder, anew.sweeps["s"]) == {"amp": True}
    assert names.isdisjoint(
        {expand(anew.sweeps["s"]).trials[0].identity(""), result_digest(anew.scaling["c"], "1x1", "")}
    )
    assert in_job.sweeps["s"].spec_content != anew.sweeps["s"].spec_content


@pytest.mark.parametrize(
    ("text", "keys", "left"),
    [
        ("lr: &lr 0.1\noptimizer: {lr: *lr}\n", ["lr"], "optimizer.lr"),
        ("lr: &lr 0.1\noptimizer: {lr: *lr}\n", ["optimizer.lr"], ""),
        ("lr: &lr 0.1\noptimizer: {lr: *lr}\n", ["lr", "optimizer.lr"], ""),
        ("base: &base {lr: 0.1, size: 1}\ntrain: {<<: *base, size: 2}\n", ["base.lr"], "train.lr"),
        ("base: &base {lr: 0.1, size: 1}\ntrain: {<<: *base, size: 2}\n", ["base.size", "train.lr"], ""),
        ("a: &a [1]\nb: *a\n", ["a"], "b"),
        ("a: 1\nb: 1\nc: !!int 1\nd: !!int 1\ne: ~\nf: ~\n", ["a", "c", "e"], ""),
    ],
)
def test_a_value_with_an_anchor_is_refused_if_its_aliases_would_keep_theirs(folder, text, keys, left):
    """Who edits the file by hand changes them, too."""
    (folder / "base.yaml").write_text(text)
    grid = {key: [1, 2] for key in keys}
    if not left:
        sweep_of(grid=grid)
        return
    with pytest.raises(ConfigError, match=f"{keys[0]} has an anchor, and {left} would keep its value"):
        sweep_of(grid=grid)


def test_repeats_have_the_seed_of_the_arguments_in_the_file(folder):
    sweep = sweep_of(args={"seed": 7}, repeats=2)
    assert [written(folder, sweep, number)["seed"] for number in (0, 1)] == [7, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"optimizer.lrr": [1]}}, "base.yaml has no optimizer.lrr: add it there if the program reads it; did "
                                           "you mean 'optimizer.lr'?"),
        ({"grid": {"width": [1]}}, "base.yaml has no width: add it there"),
        ({"grid": {"lr": [1]}}, r"has no lr: .*; known: defaults.lr, optimizer.lr, copy.lr"),
        ({"grid": {"seeds": [1]}}, "did you mean 'seed'"),
        ({"grid": {"layers.2.width": [1]}}, "base.yaml has no layers.2.width"),
        ({"grid": {"note.name": [1]}}, "base.yaml has no note.name"),
        ({"grid": {"optimizer": ["adam"]}}, "optimizer is a section of the settings: give values for its keys"),
        ({"settings": None}, "has {settings}, which is neither an argument nor predefined; or give `settings`"),
        ({"command": "python train.py"}, "`settings` is not used: write {settings} in the command"),
        ({"command": "x {settings} {args}"}, "{args} and {settings} both have all arguments: write one of the two"),
        ({"args": {"settings": 1}}, "settings is predefined: give the argument another name"),
        ({"settings": "absent.yaml"}, "absent.yaml cannot be read .*No such file"),
        ({"settings": "base.ini"}, "base.ini must end in .json, .yaml, .yml or .toml; json, yaml or toml alone is"),
        ({"settings": "list.json"}, "list.json must be a mapping of settings"),
        ({"settings": "bad.yaml"}, "bad.yaml cannot be read: .* line 2"),
        ({"settings": "base.toml", "grid": {"optimizer.lr": [None]}}, "null, dates, nan and inf cannot be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_an_error_that_names_what_would_be_right(folder, options, message):
    (folder / "base.ini").write_text("")
    (folder / "list.json").write_text("[1]")
    (folder / "bad.yaml").write_text("a: 1\nb: c: d\n")
    with pytest.raises(ConfigError, match=message.replace("{", r"\{").replace("?", r"\?")):
        sweep_of(**{"grid": {"amp": [True]}, **options})


def test_a_study_names_what_its_file_lacks():
    study = {"script": "t.py {settings}", "settings": "base.json", "args": {"optimizer.l": 1}, "scales": ["1x1"]}
    with pytest.raises(ConfigError, match=r"scaling\.c: base.json has no optimizer.l: .*did you mean 'optimizer.lr'"):
        check_config({"scaling": {"c": study}})


def test_what_toml_cannot_have_is_an_error(folder):
    (folder / "dates.toml").write_text("day = 2024-01-01\namp = true\n")
    with pytest.raises(ConfigError, match="null, dates, nan and inf cannot be written as TOML here: use YAML"):
        sweep_of(settings="dates.toml", grid={"amp": [False]})
