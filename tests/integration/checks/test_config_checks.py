"""What is wrong with files, data and code is found before a job is queued: all of it at once, with its place."""

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
import torch
from trainyard.checks import code_checks, code_probe, model_probe
from trainyard.checks.config_checks import check_use
from trainyard.checks.findings import refuse_mistakes
from trainyard.checks.program_checks import CheckedStudy
from trainyard.checks.script_checks import check_script_source
from trainyard.config.load import check_config
from trainyard.config.train import Train
from trainyard.data.known_images import KnownImages
from trainyard.programs.user_environment import RECORD
from trainyard.training.models import build_model
from trainyard.utils.errors import UserError

DIGITS = {"d": {"source": "digits"}}


def relative():
    return f"a relative path begins in this folder: {Path.cwd()}"


@pytest.fixture
def mistakes(tmp_path, monkeypatch):
    """A function from a config to the lines of its mistakes; own code is in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def find(raw, **options):
        try:
            refuse_mistakes(check_use(check_config(raw), tmp_path / "results", **options), notify=logging.warning)
        except UserError as error:
            first, *lines = str(error).splitlines()
            assert first.split()[0] == str(len(lines))
            return [line.strip() for line in lines]
        return []

    return find


def training(place, dataset="d", **train):
    """A sweep with one training."""
    return {place: {"dataset": dataset, "train": {"model": "cnn", "batch_size": 32, **train}, "trials": [{}]}}


def test_wrong_files_columns_arguments_and_batches_are_all_named(mistakes):
    Path("prices.csv").write_text("\ufeffsize,price\n1,2\n")
    datasets = {
        **DIGITS,
        "photos": {"source": "imagefolder", "root": "nowhere"},
        "copy": {"source": "torchvision", "name": "MNIST", "root": "nowhere.zip"},
        "prices": {"source": "table", "path": "prices.csv", "target": "prize"},
        "absent": {"source": "table", "path": "absent.csv", "target": "y"},
    }
    sweeps = {
        **training("large", batch_size=500, accumulation=3),
        **training("spelled", model="resnet", model_args={"block": 4, "width": "8"}),
        "command": {"command": "python absent.py"},
        "words": {"command": ["true"], "metrics": {"pattern": "acc (?P<acc>.*)", "sample": "acc high"}},
    }
    many = {"dataset": "d", "train": {"model": "cnn", "batch_size": 512}, "scales": ["1x1", "1x4"]}
    assert mistakes({"datasets": datasets, "sweeps": sweeps, "scaling": {"many": many}}) == [
        f"datasets.photos.root: nowhere: no such file or folder: {relative()}",
        f"datasets.copy.root: nowhere.zip: no such file or folder: {relative()}",
        "datasets.prices.target: prices.csv has no column 'prize': did you mean 'price'?",
        f"datasets.absent.path: absent.csv: no such file: {relative()}",
        "sweeps.large.train.batch_size: the global batch of 1,500 images is larger than the 1,437 images for training: "
        "lower it",
        "sweeps.spelled.train.model_args.block: is not an argument of resnet: did you mean 'blocks'?",
        "sweeps.spelled.train.model_args.width: must be a positive integer: it is '8'",
        f"sweeps.command.command: absent.py: no such file: {relative()}",
        "sweeps.words.metrics.pattern: finds 'high' for acc, which is not a number: write (?P<acc>{number})",
        "scaling.many.train.batch_size: the global batch of 2,048 images at 1x4 is larger than the 1,437 images for "
        "training: lower it",
    ]


def test_a_decay_that_a_training_is_too_short_for_is_a_warning(tmp_path):
    sweeps = {
        **training("short", epochs=2, ema_decay=0.999),
        **training("long", epochs=2, ema_decay=0.9),
        **training("none", epochs=2),
    }
    train = {"model": "cnn", "batch_size": 64, "epochs": 10, "ema_decay": 0.95}
    study = {"dataset": "d", "train": train, "scales": ["1x1", "1x4"]}
    config = check_config({"datasets": DIGITS, "sweeps": sweeps, "scaling": {"s": study}})
    found = [str(each) for each in check_use(config, tmp_path / "results") if each.name.endswith("ema_decay")]
    assert found == [
        "sweeps.short.train.ema_decay: 0.999 is not reached in 88 steps: it ends at 0.9072: lower it, or train longer: "
        "all values above 0.9072 give the same average",
        "scaling.s.train.ema_decay: 0.95 is not reached in 50 steps at 1x4: it ends at 0.8475: lower it, or train "
        "longer: all values above 0.8475 give the same average",
    ]


@pytest.mark.parametrize(
    ("sample", "message"),
    [("loss: 3,2451", "matches only '3' of '3,2451' for loss"), ("loss: 1 234.5", "'1' of '1 234.5'")],
)
def test_a_decimal_comma_or_a_space_in_the_number_of_a_sample_fails(tmp_path, sample, message):
    metrics = {"pattern": "loss: (?P<loss>{number})", "sample": sample}
    found = check_use(check_config({"sweeps": {"s": {"command": ["true"], "metrics": metrics}}}), tmp_path / "results")
    (pattern,) = [each for each in found if each.name.endswith("metrics.pattern")]
    assert pattern.verdict == "fails"
    assert message in pattern.message


def test_a_script_on_several_gpus_is_asked_whose_throughput_it_prints(tmp_path):
    script = {"script": "train.py", "metrics": {"pattern": "(?P<images_per_second>{number}) img/s"}}

    def asked(**options):
        found = check_use(check_config({"scaling": {"s": {**script, **options}}}), tmp_path / "results")
        return [each.remedy for each in found if each.name == "scaling.s.per"]

    assert asked(scales=["1x1", "1x2"]) == ["set `per: gpu` or `per: all`"]
    assert asked(scales=["1x1", "1x2"], per="gpu") == asked(scales=["1x1"]) == []


def test_a_percentage_of_a_sample_is_shown_as_a_short_fraction(tmp_path):
    metrics = {"pattern": r"acc: (?P<acc>{number})", "sample": "acc: 49.67%"}
    found = check_use(check_config({"sweeps": {"s": {"command": ["true"], "metrics": metrics}}}), tmp_path / "results")
    assert [each.message for each in found if "sample" in each.message] == ["finds acc = 0.4967 in the sample"]


PROGRAM = "no such program on the PATH of the command: activate your environment, or name it by `env:`"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("pyhton train.py", f"pyhton: {PROGRAM}"),
        ("LR=1 pyhton -m train 2>&1 | tee log", f"pyhton: {PROGRAM}"),
        (["pyhton", "train.py"], f"pyhton: {PROGRAM}"),
        (["cd", "x"], f"cd: {PROGRAM}"),
        ("bin/train --lr 1", f"bin/train: {PROGRAM}"),
        ("./plain.sh", "./plain.sh: is not executable: `chmod +x` makes it so"),
        ("./absent.sh", "./absent.sh: no such file: {relative}"),
        ("cd x && pyhton train.py", None),
        ("for n in 1 2; do echo $n; done", None),
        ("E=(a b c); x ${E[0]}", None),
        ("mine --lr 1", None),
        ("$HOME/train; (x)", None),
        ("~/train", None),
        (["{program}"], None),
    ],
)
def test_the_program_of_a_command_must_be_there(mistakes, monkeypatch, caplog, command, problem):
    monkeypatch.setenv("BASH_FUNC_mine%%", "() { true; }")  # `module` is such a function
    for name in ("train.py", "plain.sh"):
        Path(name).touch()
    config = {"sweeps": {"s": {"command": command, "args": {"program": "x"} if "{program}" in command else {}}}}
    if shutil.which("cd"):  # POSIX wants it as a program, too
        problem = None if command == ["cd", "x"] else problem
    expected = (problem or "").format(relative=relative())
    assert mistakes(config) == [f"sweeps.s.command: {expected}"] * bool(problem)
    if problem and "no such program" in problem:  # it may be on the nodes, or in a container
        assert mistakes(config, has_scheduler=True) == mistakes(config, in_container=True) == []
        assert problem in caplog.text


def test_a_key_of_a_trial_that_resembles_one_of_the_search_is_reported(mistakes, caplog):
    Path("t.py").write_text("")
    search = {"trials": 3, "values": {"width": [1, 2], "net.depth": [1, 2]}}
    sweep = {
        "command": "python t.py {args}",
        "args": {"net": {"dept": 2}},
        "workdir": "trial",
        "search": search,
        "metrics": {"file": "m.csv"},
    }
    trials = [{"width": 1, "widths": 3}, {"lr": 3, "net.dept": 1}, {"widht": 2}]
    assert mistakes({"sweeps": {"s": {**sweep, "trials": trials}}}) == []
    reported = [line for line in caplog.text.splitlines() if ".trials." in line]
    assert len(reported) == 1
    assert "s.trials.2.widht: is no key of `search` or `args`: did you mean 'width'?" in reported[0]


@pytest.mark.parametrize(
    ("sweep", "reported"),
    [({}, True), ({"metric": "seconds"}, False), ({"metrics": {"pattern": "a=(?P<acc>{number})"}}, False)],
)
def test_a_ranking_by_seconds_for_want_of_metrics_is_reported(mistakes, caplog, sweep, reported):
    assert mistakes({"sweeps": {"s": {"command": "true {n}", "grid": {"n": [1, 2]}, **sweep}}}) == []
    assert (
        "sweeps.s.metrics: without metrics, trials are ranked by their seconds: say where" in caplog.text
    ) == reported


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("LR={LR} LR=0.3 python3 -c 1", "LR=0.3 may take the place of the varied LR"),
        ("python3 -c 1 --LR {LR} --LR 0.3", "--LR 0.3 may take the place of the varied LR"),
        ("python3 -c 1 {args:hydra} LR=0.3", "LR=0.3 may take the place of the varied LR"),
        ("python3 -c 1 LR=0.3 --config {settings}", "LR=0.3 may take the place of the varied LR"),
        ("python3 -c 1 --rate {LR} --rate 0.3", "--rate 0.3 may take the place of the varied LR"),
        (
            "python3 -c 1 --learning-rate={LR} --learning_rate=3",
            "--learning_rate=3 may take the place of the varied LR",
        ),
        ("python3 -c 1 --set LR={LR} --set bs=32 --opt sgd --name lr{LR} --name x --rate {LR} --rate {2 * LR}", ""),
        ("LR=0.3 python3 -c 1 --LR 0.1 --LR {LR} --name LR={LR}", ""),
        ("LR={LR}; python3 -c 1 --LR $LR --LR=$LR", ""),
        ("python3 -c 1 --LR {LR} && python3 -c 2 --LR 3 | python3 -c 3 --LR 4", ""),
        ("python3 -c 1 --LR 3\npython3 -c 1 \\\n--LR {LR} --out {2 * LR}", ""),
        ("cat <<'E'\nit's\nE\necho {LR}", ""),
    ],
)
def test_a_value_in_the_command_that_holds_for_all_trials_is_named(tmp_path, monkeypatch, command, said):
    """A sweep would end with an answer, and all its trials would have had one value."""
    monkeypatch.chdir(tmp_path)
    Path("base.json").write_text('{"LR": 1}')
    settings = {"settings": "base.json"} if "{settings}" in command else {}
    sweep = {"command": command, "grid": {"LR": [1, 2]}, **settings}
    findings = check_use(check_config({"sweeps": {"s": sweep}}), tmp_path / "results")
    named = [each.message for each in findings if "may take the place" in each.message]
    assert named == ([said] if said else [])


SHARED = "run in one folder, and may overwrite each other's files: let the program write to "


@pytest.mark.parametrize(
    ("sweep", "reported"),
    [
        ({"command": "true {n}"}, True),
        ({"command": ["true", "{n}"]}, True),
        ({"command": "true {n}", "grid": {"n": [1]}}, False),
        ({"command": "true {n} {trial_dir}"}, False),
        ({"command": "true {n} out/{trial}.pt"}, False),
        ({"command": "true {n} $TRAINYARD_TRIAL_DIR"}, False),
        ({"command": "true {n}", "workdir": "trial"}, False),
        ({"command": "true {n}", "workdir": "keep"}, False),
    ],
)
def test_trials_that_share_a_folder_are_reported(mistakes, caplog, sweep, reported):
    assert mistakes({"sweeps": {"s": {"grid": {"n": [1, 2]}, **sweep}}}) == []
    assert (f"sweeps.s.workdir: 2 trials {SHARED}`{{trial_dir}}`, or set `workdir: trial`" in caplog.text) == reported
    assert ("sweeps.s.workdir" in caplog.text) == reported


EPOCHS = {"pattern": r"epoch (?P<epoch>\d+): (?P<loss>{number})", "sample": ["epoch 0: 0.5", "epoch 9: 0.3"]}
FROM_1 = EPOCHS | {"sample": "epoch 10: 0.3"}


@pytest.mark.parametrize(
    ("sweep", "warning"),
    [
        ({"complete": {"file": "done"}}, "file: done counts in {trial_dir} alone, which the command does not name"),
        ({"complete": {"file": "done"}, "workdir": "trial"}, ""),
        ({"complete": {"file": "done"}, "command": "true {epochs} {trial_dir}"}, ""),
        ({"complete": {"epoch": 10}, "metrics": EPOCHS}, "epoch: the sample counts epochs from 0"),
        ({"complete": {"epoch": 9}, "metrics": EPOCHS}, ""),
        ({"complete": {"epoch": 10}, "metrics": FROM_1}, ""),
        ({"complete": {"epoch": 10}, "metrics": EPOCHS, "args": {}, "command": "true --max_epochs=10"}, "epoch: the"),
        ({"complete": {"epoch": 10}, "metrics": EPOCHS, "args": {}, "command": ["true", "--epochs", "10"]}, "epoch: "),
    ],
)
def test_what_makes_a_program_complete_that_it_never_reaches_is_reported(mistakes, caplog, sweep, warning):
    assert mistakes({"sweeps": {"s": {"command": "true {epochs}", "args": {"epochs": 10}, **sweep}}}) == []
    assert ("sweeps.s.complete." in caplog.text) == bool(warning)
    assert f"sweeps.s.complete.{warning}" in caplog.text or not warning


@pytest.mark.parametrize(
    ("slots", "idle"),
    [
        ({"gpus_per_node": 3, "gpus_per_trial": 2}, "1 of 3 GPUs of each node idle, as a trial has 2: request 2, or 4"),
        ({"gpus_per_node": 8, "gpus_per_trial": 3}, "2 of 8 GPUs of each node idle, as a trial has 3: request 6, or 9"),
        ({"gpus_per_node": 4, "gpus_per_trial": 2}, ""),
        ({"gpus_per_node": 3, "gpus_per_trial": 0.5}, ""),
        ({"gpus_per_node": 3}, ""),
    ],
)
def test_gpus_that_no_trial_gets_are_reported(mistakes, caplog, slots, idle):
    assert mistakes({"sweeps": {"s": {"command": "true {n} {trial}", "grid": {"n": [1, 2]}, "slots": slots}}}) == []
    assert ("sweeps.s.slots: " in caplog.text) == bool(idle)
    assert idle in caplog.text


def test_all_gpus_of_the_nodes_of_a_trial_are_used(mistakes, caplog):
    sweep = training("s")["s"] | {"slots": {"gpus_per_node": 2, "nodes_per_trial": 2}}
    assert mistakes({"datasets": DIGITS, "sweeps": {"s": sweep}}) == []
    assert "sweeps.s.slots: " not in caplog.text


def test_scales_that_share_a_folder_are_reported(mistakes, caplog):
    Path("t.py").touch()
    study = {"script": "t.py", "env": sys.executable}
    for options, reported in (
        ({"scales": ["1x1"]}, False),
        ({"scales": ["1x1", "1x2"], "workdir": "trial"}, False),
        ({"scales": ["1x1", "1x2"], "script": "t.py {out_dir}"}, False),
        ({"scales": ["1x1"], "repeats": 2}, True),
    ):
        assert mistakes({"scaling": {"s": study | options}}) == []
        assert (f"scaling.s.workdir: 2 runs {SHARED}`{{out_dir}}`" in caplog.text) == reported


def test_a_command_that_is_text_needs_bash(mistakes, monkeypatch):
    monkeypatch.setenv(RECORD, json.dumps({"PATH": "/nowhere"}))
    needs_none = ", which runs a command that is text: a list of words needs none"
    assert mistakes({"sweeps": {"s": {"command": "true"}}}, has_scheduler=True) == [
        f"sweeps.s.command: there is no bash on your PATH{needs_none}"
    ]
    assert mistakes({"sweeps": {"s": {"command": [sys.executable]}}}) == []


OWN = """
import torch

def plain(*, channels, classes, width=4):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * 64, classes))

def hard_coded(*, channels, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * 64, 5))

def embedding(*, channels, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * 64, 2))

def of_other_sizes(*, channels, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, classes))

def computing(*, channels, classes):
    model = plain(channels=channels, classes=classes)
    assert model[1].weight.sum().item() != 100, "values, which no model without memory has"
    return model

def quits(*, channels, classes):
    raise SystemExit("no such width")

def per_image(outputs, targets):
    return (outputs[:, 0] - targets) ** 2

def loss(outputs, targets):
    return outputs.square().mean()

def run(config):
    return {}

def data(folder):
    return [], []
"""


def test_wrong_models_and_code_are_all_named_before_the_data_are_staged(mistakes):
    Path("own.py").write_text(OWN)
    Path("ending.py").write_text("import sys; print('usage: ...'); sys.exit(2)")
    unknown = {"photos": {"source": "python", "factory": "own:data", "args": {"root": "x"}}}
    sweeps = {
        **training("unknown", model="resnet500"),
        **training("arguments", model="resnet18", model_args={"width": 64}),
        **training("outputs", model="own:hard_coded"),
        **training("sizes", model="own:of_other_sizes"),
        **training("quits", model="own:quits"),
        **training("later", "photos", model="own:plain", model_args={"depth": 3}),
        **training("loss", model="own:plain", loss="own:per_image"),
        **training("ending", model="ending:build"),
        **training("misspelled", model="own:plane"),
        **training("works", model="own:computing", loss="own:loss", metrics=["top5_accuracy"]),
        **training("embedding", model="own:embedding", loss="own:loss"),
        "function": {"function": "own:run"},
    }
    places = {}
    for line in mistakes({"datasets": {**DIGITS, **unknown}, "sweeps": sweeps}):
        place, _, message = line.partition(": ")
        assert place not in places
        places[place] = message
    expected = {
        "datasets.photos.factory": "dataset 'own:data' is called with (root=...): ",
        "sweeps.unknown.train": "model 'resnet500' is not known; did you mean 'resnet50'?",
        "sweeps.arguments.train": "model 'resnet18' cannot be built with {'width': 64}: ",
        "sweeps.outputs.train": "model 'own:hard_coded' returns the shape (2, 5) for 2 images, but the dataset's "
        "classes need (2, 10)",
        "sweeps.sizes.train": "model 'own:of_other_sizes': RuntimeError: ",
        "sweeps.quits.train": "model 'own:quits': it calls sys.exit('no such width') (",
        "sweeps.later.train": "model 'own:plain' is called with (channels=..., classes=..., depth=...)",
        "sweeps.loss.train": "loss 'own:per_image': it returns the shape (2,)",
        "sweeps.ending.train.model": "model 'ending:build' cannot be imported: it calls sys.exit(2)",
        "sweeps.misspelled.train.model": "model 'own:plane' cannot be imported: module 'own' has no attribute 'plane'; "
        "did you mean 'plain'?",
        "sweeps.function.function": "function 'own:run' is called with (config, context): too many positional "
        "arguments; define it as `def run(config, context)`",
    }
    assert places.keys() == expected.keys()
    for place, message in expected.items():
        assert places[place].startswith(message), place


def test_weights_that_may_fit_images_not_staged_yet_are_no_mistake(mistakes):
    Path("photos").mkdir()
    torch.save(build_model(Train(model="cnn", batch_size=1), shape=(8, 8, 3), classes=10).state_dict(), "fits.pt")
    torch.save({"another": torch.ones(1)}, "another.pt")
    datasets = {"photos": {"source": "imagefolder", "root": "photos"}}
    sweeps = {name: training(name, "photos", pretrained=f"{name}.pt")[name] for name in ("fits", "another")}
    (line,) = mistakes({"datasets": datasets, "sweeps": sweeps})
    assert "another.pt: has none of the names of cnn" in line


def test_trainings_are_not_tried_for_longer_than_users_wait(monkeypatch):
    monkeypatch.setattr(model_probe, "TOTAL_SECONDS", -1)
    findings = model_probe.probe_trainings([("p", Train(model="resnet18", batch_size=1), KnownImages())])
    assert [each.verdict for each in findings] == ["unknown"]


@pytest.mark.parametrize("drivers", [(), (__file__,)], ids=["login node", "GPU node"])
def test_code_that_needs_a_gpu_is_no_mistake_on_a_machine_without_one(tmp_path, monkeypatch, drivers):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code_probe, "DRIVERS", drivers)
    Path("on_gpu.py").write_text("raise RuntimeError('Found no NVIDIA driver on your system')")
    answer = code_probe.probe_code({"imports": [["p", "on_gpu:build", "model", None]]})
    ((place, verdict, message),) = answer["findings"]
    assert (place, verdict) == ("p", "fails" if drivers else "unknown")
    assert "NVIDIA" in message


@pytest.mark.parametrize("code", ["import cuda_ops", "def build(**options):\n    import nvidia.no_ops"])
def test_a_module_that_is_missing_is_a_mistake_on_a_machine_without_a_gpu(tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code_probe, "DRIVERS", ())
    name = f"with_ops_{len(code)}"
    Path(f"{name}.py").write_text(code)
    train = Train(model=f"{name}:build", batch_size=1).model_dump(mode="json")
    answer = code_probe.probe_code({"trainings": [["p", train, {"shape": (8, 8, 1), "outputs": 3}]]})
    ((place, verdict, message),) = answer["findings"]
    assert (place, verdict) == ("p", "fails")
    assert "No module named" in message


def test_code_that_has_passed_is_tried_again_only_after_a_change(mistakes):
    code = "open('tried', 'a').write('x')\ndef run(config, context): pass\n"
    raw = {"sweeps": {"s": {"function": "mine:run"}}}
    for content, tries in ((code, "x"), (f"{code}\n", "xx")):
        Path("mine.py").write_text(content)
        for _ in range(2):
            assert mistakes(raw) == []
            assert Path("tried").read_text() == tries


def test_code_that_ends_the_process_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("crashing.py").write_text("import os; print('its output', flush=True); os._exit(3)")
    config = check_config({"sweeps": {"s": {"function": "crashing:run"}}})
    with pytest.raises(UserError, match=r"the process that tries crashing:run ended \(exit code 3\):\nits output"):
        list(code_checks.check_code(config, tmp_path))


def test_code_is_not_tried_where_only_the_jobs_have_torch(tmp_path, monkeypatch):
    config = check_config({"sweeps": {"s": {"function": "absent:run"}}})
    monkeypatch.setattr(code_checks.importlib.util, "find_spec", lambda name: None)
    assert list(code_checks.check_code(config, tmp_path, other_environment=True)) == []


@pytest.mark.parametrize(
    ("raw", "extra"),
    [
        ({"datasets": {"d": {"source": "digits"}}, "sweeps": {"t": {"dataset": "d", "trees": {}}}}, "trees"),
        ({"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": {"dataset": "d", "grid": {"lr": [0.1]}}}}, "train"),
        ({"datasets": {"d": {"source": "torchvision", "name": "MNIST"}}}, "train"),
        (
            {"sweeps": {"s": {"command": "x {x}", "grid": {"x": [1]}, "metrics": {"file": "runs"}}}},
            "tensorboard",
        ),
    ],
)
def test_an_extra_that_the_config_needs_and_that_is_missing_is_named(raw, extra, tmp_path, monkeypatch):
    monkeypatch.setattr(code_checks.importlib.util, "find_spec", lambda name: None)
    for other, verdict in ((True, "warns"), (False, "fails")):
        (found,) = code_checks.check_code(check_config(raw), tmp_path, other_environment=other)
        assert found.verdict == verdict
        assert f"install trainyard[{extra}] there" in found.remedy


def test_what_only_a_cluster_may_have_is_a_warning_in_its_plan(mistakes, caplog):
    datasets = {"shared": {"source": "imagefolder", "root": "/no-such-mount/images"}}
    study = {"script": "absent.py", "scales": ["1x1"], "env": "trainyard"}
    raw = {"datasets": datasets, "scaling": {"s": study}}
    assert len(mistakes(raw)) == 2
    assert [line.split(":")[0] for line in mistakes(raw, has_scheduler=True)] == ["scaling.s.script"]
    caplog.clear()
    assert mistakes(raw, has_scheduler=True, dry_run=True) == []
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "datasets.shared.root",
        "scaling.s.script",
    ]


@pytest.mark.parametrize(
    ("command", "verdicts"),
    [
        ("python absent.py fit -c base.yaml", {"fails"}),
        ("python -u absent.py -m resnet", {"fails"}),
        ("python absent.py \\\n  --lr 1\n", {"fails"}),
        ("python -c 'print()' absent.py", set()),
        ("cd project\npython absent.py", set()),
        ("python3.11 -u absent.py --save model.py", {"fails"}),
        ("./absent.sh", {"fails"}),
        ("apptainer exec image.sif python /opt/absent.py", {"warns"}),
        (["program", "--save", "absent.py"], set()),
        ("torchrun --nproc-per-node 2 absent.py", {"fails"}),
        ("srun --container-image=image python /opt/absent.py", {"warns", "fails"}),
        ("python $HOME/absent.py", set()),
        ("tool.sh", set()),  # on PATH
        (["bash", "-lc", "python there.py"], set()),
        ("python -m package absent.py", set()),
    ],
)
def test_only_a_script_that_a_command_itself_starts_must_be_there(tmp_path, monkeypatch, command, verdicts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool.sh").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    sweep = check_config({"sweeps": {"s": {"command": command}}}).sweeps["s"]
    assert {each.verdict for each in check_script_source(CheckedStudy("s", sweep))} == verdicts


def test_a_distributed_script_may_be_written_with_its_interpreter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.py").touch()
    for script, verdicts in {"python there.py": ["ok"], "python absent.py": ["fails"], "absent.py": ["fails"]}.items():
        study = check_config({"scaling": {"s": {"script": script, "scales": ["1x1"]}}}).scaling["s"]
        found = check_script_source(CheckedStudy("s", study))
        assert [each.verdict for each in found] == verdicts


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ({"metrics": {"pattern": "e (?P<val_error_rate>{number})"}}, "s.mode: a smaller val_error_rate is better"),
        ({"metrics": {"pattern": "e (?P<score>{number})"}}, "s.mode: a larger score is better, by its name"),
        ({"metrics": {"pattern": "e (?P<score>{number})"}, "mode": "max"}, ""),
        ({"metrics": {"pattern": "e (?P<val_accuracy>{number})"}}, ""),
        ({"metrics": {"pattern": r"(?P<step>\d+) (?P<score>{number})"}}, "s.mode: a larger score is better"),
        (
            {"metrics": {"pattern": "e (?P<loss>{number})"}, "mode": "max"},
            "s.mode: max, but by its name a smaller loss is",
        ),
        (
            {"metrics": {"pattern": "(?P<acc>{number}) (?P<ms>{number})"}, "objectives": {"acc": "max", "ms": "max"}},
            "s.objectives.ms: max, but by its name a smaller ms is",
        ),
    ],
)
def test_a_guess_from_the_name_of_a_metric_is_reported(mistakes, caplog, sweep, expected):
    assert mistakes({"sweeps": {"s": {"command": "true", **sweep}}}) == []
    assert [
        record.getMessage() for record in caplog.records if expected and expected in record.getMessage()
    ] or not expected
    assert expected or not caplog.records


def test_several_metrics_of_which_none_is_named_to_rank_the_trials_are_a_mistake(mistakes):
    metrics = {"pattern": r"step (?P<step>\d+) loss (?P<loss>{number}) acc (?P<acc>{number}) lr (?P<lr>{number})"}
    sweep = {"command": "true {x}", "grid": {"x": [1, 2]}, "metrics": metrics}
    assert mistakes({"sweeps": {"s": sweep}}) == [
        "sweeps.s.metric: trials report loss and acc, and the config names none to rank them by: set `metric`"
    ]
    assert mistakes({"sweeps": {"s": sweep | {"metric": "acc"}}}) == []
    assert mistakes({"sweeps": {"s": sweep | {"grid": {"x": [1]}}}}) == [], "there is nothing to rank"


def test_make_check_prints_a_line_per_check_and_what_cannot_be_known_yet(project):
    (project.folder / "photos").mkdir()
    datasets = {**DIGITS, "photos": {"source": "imagefolder", "root": "photos"}}
    sweeps = {**training("small"), **training("large", batch_size=5000), **training("unknown", "photos")}
    project.write({"datasets": datasets, "sweeps": sweeps})
    done = project.run(*project.script("check"), check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    verdicts = {words[0]: words[1] for line in lines if len(words := line.split()) > 2 and not line.startswith(" ")}
    assert verdicts == {
        "config": "ok",
        "datasets.d": "ok",
        "datasets.photos": "unknown",
        "sweeps.small": "ok",
        "sweeps.small.train.batch_size": "ok",
        "sweeps.large": "ok",
        "sweeps.large.train.batch_size": "FAILS",
        "sweeps.unknown": "ok",
        "sweeps.unknown.train.batch_size": "unknown",
        "1": "of",
    }
    assert lines[-1] == "1 of these fails; 2 cannot be known yet."
