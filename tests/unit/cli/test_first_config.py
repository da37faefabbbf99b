"""The first config for a script, and the profile for a site."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from project import ROOT
from trainyard.cli.first_config import (
    Observed,
    build_command,
    fill_profile,
    find_constants,
    find_varied,
    first_config,
    missing_options,
    todos,
    type_words,
)
from trainyard.cluster.slurm_queries import parse_partition
from trainyard.config.load import check_config
from trainyard.config.parser import read_file
from trainyard.config.placeholders import Switch
from trainyard.config.user_programs import Metrics
from trainyard.programs.script_options import Script, ScriptOption, read_script
from trainyard.programs.script_source import read_source

LR = ScriptOption("--lr", default=0.1)
NOTHING = Observed()


def written(tmp_path, *options, observed=NOTHING, uses_hydra=False):
    """The sweep that is written for a script with these options, after it was checked as a config."""
    script = Script(Path("train.py"), options, library="hydra" if uses_hydra else "")
    path = tmp_path / "trainyard.yaml"
    _, varied = find_varied(script, ())
    path.write_text(first_config(script, varied, observed, todos(script, varied, observed)))
    content = read_file(path)
    check_config(content)
    return content["sweeps"]["train"]


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ([LR, ScriptOption("--batch_size", default=64)], "python train.py {args}"),
        ([LR, ScriptOption("--batch-size", default=64)], "python train.py {args:dashes}"),
        (
            [ScriptOption("--batch_size", default=64), ScriptOption("--learning-rate")],
            "python train.py --learning-rate {learning_rate} --batch_size {batch_size}",
        ),
        ([LR, ScriptOption("--out", default="model.pt")], "python train.py {args} --out {trial_dir}/model.pt"),
        ([ScriptOption("--lr0", default=0.01)], "python train.py {args}"),
        ([ScriptOption("--save", is_flag=True), LR, ScriptOption("--log_dir")],
         "python train.py {args} --log_dir {trial_dir}"),
    ],
)  # fmt: skip
def test_the_command_has_what_is_varied_and_the_folder_of_the_trial(tmp_path, options, command):
    assert written(tmp_path, *options)["command"] == command


def test_keys_of_hydra_are_varied_by_their_last_part(tmp_path):
    keys = (ScriptOption("seed", default=1), ScriptOption("optimizer.lr", default=1e-3))
    sweep = written(tmp_path, *keys, uses_hydra=True)
    assert sweep["command"] == "python train.py {args:hydra} hydra.run.dir={trial_dir}"
    assert sweep["sample"]["values"] == {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}}


def test_values_are_around_the_defaults_and_neither_epochs_nor_seeds_are_varied(tmp_path):
    options = (
        ScriptOption("--momentum", default=0.9), ScriptOption("--epochs", default=10),
        ScriptOption("--seed", default=0),
        ScriptOption("--min_lr", default=1e-6), ScriptOption("--weight_decay", default=0), LR,
        ScriptOption("--optimizer", default="sgd", choices=("sgd", "adam", "no")), ScriptOption("--width"),
        ScriptOption("batch_size", is_required=True), ScriptOption("--bs", default=1),
    )  # fmt: skip
    assert written(tmp_path, *options)["sample"]["values"] == {
        "lr": {"low": 0.01, "high": 1.0, "log": True},
        "weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
        "optimizer": ["sgd", "adam", "no"],
        "momentum": {"low": 0.8, "high": 0.99},
    }
    assert (tmp_path / "trainyard.yaml").read_text().count("TODO: batch_size is required") == 1


@pytest.mark.parametrize(
    "option",
    [
        ScriptOption("--use_dropout", default=True), ScriptOption("--dropout", is_flag=True),
        ScriptOption("--dropout", switch=Switch(("--dropout", "true"), ("--dropout", "false"))),
        ScriptOption("--dropout", problem="`type=bool` takes any text for true, also `false`"),
        ScriptOption("--momentum", default="auto"), ScriptOption("--momentum", default=[0.9, 0.99]),
    ],
)  # fmt: skip
def test_an_option_that_takes_no_number_is_not_searched_over_numbers(tmp_path, option):
    assert list(written(tmp_path, LR, option)["sample"]["values"]) == ["lr"]


@pytest.mark.parametrize(
    ("option", "uses_hydra", "resume"),
    [
        (ScriptOption("--resume", default=""), False, "--resume {resume_from}"),
        (ScriptOption("--resume", is_flag=True), False, "--resume"),
        (ScriptOption("--resume-from-checkpoint"), False, "--resume-from-checkpoint {resume_from}"),
        (ScriptOption("--checkpoint"), False, "--checkpoint {resume_from}"),
        (ScriptOption("trainer.resume_from"), True, "trainer.resume_from={resume_from}"),
        (ScriptOption("--checkpoint-dir"), False, None),
        (ScriptOption("resume"), False, None),
        (ScriptOption("--checkpoint-every", default=5), False, None),
    ],
)
def test_a_script_that_can_resume_gets_the_lines_to_enable_that(tmp_path, option, uses_hydra, resume):
    sweep = written(tmp_path, LR, option, uses_hydra=uses_hydra)
    text = (tmp_path / "trainyard.yaml").read_text()
    found = re.search(r"TODO: if it can resume, .*\n#   (checkpoint: .+)\n#   (resume: .+)\n", text)
    assert bool(found) == (resume is not None)
    if found:
        sweep |= yaml.safe_load("\n".join(found.groups()))
        assert (sweep["checkpoint"], sweep["resume"]) == ("*.pt", resume)
        check_config({"sweeps": {"train": sweep}})


HANDLES = "import signal\nsignal.signal(signal.SIG{}, lambda *_: save())\n"


@pytest.mark.parametrize(
    ("handled", "name"),
    [
        (["USR1"], "USR1"),
        (["USR2", "INT"], "USR2"),
        (["USR1", "TERM"], None),
        (["TERM"], None),
        (["HUP", "ALRM"], None),
    ],
)
def test_the_only_signal_that_a_script_handles_is_its_stop_signal(tmp_path, monkeypatch, handled, name):
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text("".join(map(HANDLES.format, handled)))
    script = Script(path, (LR,), source=read_source(path))
    _, varied = find_varied(script, ())
    text = first_config(script, varied, NOTHING, todos(script, varied, NOTHING))
    assert yaml.safe_load(text)["sweeps"]["train"].get("stop_signal") == name
    assert ("which a trial gets only with `stop_signal: USR1`" in text) == (handled == ["USR1", "TERM"])


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--exit-duration-in-mins", "complete: {epoch: 10}"),
        ("--max_hours", "complete: {epoch: 10}"),
        ("--env-id", "average: [env_id]"),
        ("--fold", "average: [fold]"),
        ("--max-steps", ""),
    ],
)
def test_keys_that_an_option_suggests_are_comments(tmp_path, flag, line):
    written(tmp_path, LR, ScriptOption(flag))
    found = re.findall(r"^#   (complete.*|average.*)", (tmp_path / "trainyard.yaml").read_text(), re.MULTILINE)
    assert found == [line] * bool(line)


def test_a_trainer_of_hugging_face_resumes_from_a_folder_that_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("from transformers import Trainer, HfArgumentParser")
    script = Script(Path("train.py"), (LR,), source=read_source(Path("train.py")))
    text = "\n".join(todos(script, find_varied(script, ())[1], NOTHING))
    assert "checkpoint: 'checkpoint-*/trainer_state.json'\n  resume: --resume_from_checkpoint {resume_from}" in text


@pytest.mark.parametrize("observed", [NOTHING, Observed(Metrics(pattern="loss (?P<loss>{number})"), "loss")])
def test_few_values_are_a_grid(tmp_path, observed):
    """Drawn at random, most of the trials would be equal."""
    sweep = written(tmp_path, ScriptOption("--optimizer", choices=("sgd", "adam")), observed=observed)
    assert sweep["grid"] == {"optimizer": ["sgd", "adam"]}
    assert not {"search", "sample"}.intersection(sweep)


@pytest.mark.parametrize(("gpu", "sinfo"), [(False, None), (True, None), (False, "/usr/bin/sinfo")])
def test_slots_on_a_machine_without_a_gpu_and_slurm_have_a_comment(tmp_path, monkeypatch, gpu, sinfo):
    monkeypatch.setattr("trainyard.cli.first_config.has_gpu", lambda: gpu)
    monkeypatch.setattr("shutil.which", lambda name: sinfo)
    assert written(tmp_path, LR)["slots"] == {"gpus_per_node": 1}
    line = "    slots: {gpus_per_node: 1}" + "  # without a GPU: {cpus: 1}" * (not gpu and not sinfo)
    assert (tmp_path / "trainyard.yaml").read_text().endswith(f"\n{line}\n")


def test_with_metrics_it_is_a_search(tmp_path):
    metrics = Metrics(pattern="loss (?P<loss>{number})", sample="loss 0.1")
    sweep = written(tmp_path, LR, observed=Observed(metrics, "loss"))
    assert sweep["search"]["method"] == "tpe"
    assert (sweep["metrics"], sweep["metric"], sweep["mode"]) == ({
        "pattern": "loss (?P<loss>{number})", "sample": "loss 0.1"}, "loss", "min")  # fmt: skip
    assert sweep["workdir"] == "trial"
    assert "TODO" not in (tmp_path / "trainyard.yaml").read_text()


def test_a_script_that_writes_where_it_runs_gets_a_folder_and_finds_its_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = (LR, ScriptOption("--data-dir", default="data"), ScriptOption("--val_path", default="/shared/val"))
    sweep = written(tmp_path, *options, observed=Observed(writes_here=True))
    assert sweep["workdir"] == "trial"
    assert sweep["command"] == f"python train.py {{args}} --data-dir {tmp_path}/data --val_path /shared/val"
    assert written(tmp_path, *options) == sweep, "also if it is not known where it writes"


def test_the_name_of_a_dataset_is_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [
        ScriptOption("--dataset", default="cifar10"),
        ScriptOption("--root_path", default="./data/ETT/"),
        ScriptOption("--data_path", default="ETTh1.csv"),  # in it
    ]
    assert written(tmp_path, LR, *options)["command"] == f"python train.py {{args}} --root_path {tmp_path}/data/ETT"
    (tmp_path / "cifar10").mkdir()
    assert f"--dataset {tmp_path}/cifar10" in written(tmp_path, LR, *options)["command"]


def test_an_input_without_a_flag_is_given_in_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = written(tmp_path, ScriptOption("data", default="imagenet"), LR)
    assert sweep["command"] == f"python train.py {{args}} {tmp_path}/imagenet"


PARTITIONS = (
    "cpu*|up|infinite|100|64|256000|(null)|(null)",
    "gpu|up|2-00:00:00|8|64|512000|gpu:a100:4|(null)",
    "gpu|up|2-00:00:00|2|64|512000|gpu:h100:4|(null)",
    "old|down|2-00:00:00|80|64|512000|gpu:k80:8|(null)",
    "debug|up|30:00|1|8|64000|gpu:1|(null)",
)


def test_the_profile_names_the_partition_with_most_gpus_and_the_account():
    own = (ROOT / "profiles/slurm/config.yaml").read_text()
    text = fill_profile(own, list(map(parse_partition, PARTITIONS)), ["lab"])
    profile, before = yaml.safe_load(text), yaml.safe_load(own)
    assert profile["default-resources"] == before["default-resources"] | {
        "slurm_account": "lab", "slurm_partition": "gpu", "gpu_type": "a100", "runtime": 60
    }  # fmt: skip
    assert {**profile, "default-resources": None} == {**before, "default-resources": None}
    assert "# of cpu, gpu, debug" in text
    assert "not of sweeps: they first request 1 h, or their `walltime`" in own
    assert "at most 2880, not of sweeps: they first request 1 h, or their `walltime`" in text
    assert "# mem_mb: 128000" in text


def test_a_site_with_one_kind_of_node_needs_no_more_than_its_partition():
    own = (ROOT / "profiles/slurm/config.yaml").read_text()
    profile = yaml.safe_load(fill_profile(own, [parse_partition("debug|up|30:00|1|8|64000|gpu:1|(null)")], []))
    assert profile["default-resources"] == {"slurm_partition": "debug", "runtime": 30, "disk_mb": 1000}
    assert fill_profile(own, [], ["lab", "course"]) == own, "Slurm takes the default account"


def test_a_command_as_it_is_typed_keeps_what_the_sweep_does_not_set(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
        "p.add_argument('-b', '--batch-size', type=int, default=32)\n"
        "p.add_argument('--amp', action='store_true')\np.add_argument('--data', required=True)\n"
        "p.add_argument('--out', default='runs')\np.parse_args()\n"
    )
    script = read_script(path)
    _, varied = find_varied(script, ())
    typed = ["--lr", "0.3", "-b64", "--amp", "--data", "cifar10", "--out", "here"]
    typed_script = type_words(script, varied, ["torchrun", "--standalone"], typed)
    start, _, rest = build_command(typed_script, varied).partition(f" {path} ")
    assert start == "torchrun --standalone"
    assert rest.endswith(" --out {trial_dir} --amp --data cifar10")
    assert "0.3" not in rest, "the sweep varies it"
    assert missing_options(script, varied) == ["--data"]
    assert missing_options(typed_script, varied) == []


def test_a_file_that_is_typed_is_found_from_the_folder_of_a_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.json").touch()
    Path("cifar10").mkdir()  # may be a name, too
    script = type_words(Script(Path("train.py"), (LR,)), {}, (), ["--data", "data.json", "cifar10", "x" * 999])
    assert script.words == ("--data", str(tmp_path / "data.json"), "cifar10", "x" * 999)


def test_a_script_that_picks_its_gpu_gets_that_of_the_trial_and_what_it_does_else_is_left_to_do(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import argparse, os, signal\np = argparse.ArgumentParser()\np.add_argument('--lr', default=0.1)\n"
        "p.add_argument('--gpu', default='0')\na = p.parse_args()\nos.environ['CUDA_VISIBLE_DEVICES'] = a.gpu\n"
        "signal.signal(signal.SIGUSR1, save)\nsignal.signal(signal.SIGTERM, print)\n"
    )
    script = read_script(path)
    _, varied = find_varied(script, ())
    assert build_command(script, varied) == f"python {path} {{args}} --gpu ${{CUDA_VISIBLE_DEVICES:-0}}"
    (left,) = [line for line in todos(script, varied, Observed()) if str(path) in line]
    assert left.startswith(f"{path}, line 7: handles SIGUSR1, which a trial gets only with `stop_signal: USR1`")


CONFIG = "import argparse, yaml\np = argparse.ArgumentParser()\np.add_argument('--config', required=True)\n"


@pytest.mark.parametrize(
    ("text", "typed", "words"),
    [
        (CONFIG, ["--config", "conf.yaml", "--amp"], "--config {settings} --amp"),
        (CONFIG, ["--config=conf.yaml"], "--config={settings}"),
        (CONFIG, ["--config", "conf.yaml", "optim.lr=0.05", "epochs=9"], "--config {settings} epochs=9"),
        (CONFIG, ["fit", "--config", "conf.yaml", "a b"], "fit --config {settings} 'a b'"),
        ("import sys\nload(sys.argv[1])\n", ["conf.yaml"], "{settings}"),
        (CONFIG.replace("required=True", "default='conf.yaml'"), [], "--config {settings}"),
    ],
)
def test_settings_in_a_file_that_the_command_names_are_varied_there(tmp_path, monkeypatch, text, typed, words):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    Path("conf.yaml").write_text("optim: {lr: 0.1, name: sgd}\nepochs: 3\nbatch_size: 64\na-b: {wd: 1}\n")
    script, varied = find_varied(read_script(Path("train.py")), typed)
    script = type_words(script, varied, ["python"], typed)
    assert missing_options(script, varied) == []
    sweep = yaml.safe_load(first_config(script, varied, NOTHING, []))["sweeps"]["train"]
    assert sweep["command"] == f"python train.py {words}"
    assert sweep["settings"] == "conf.yaml"
    assert sweep["sample"]["values"] == {
        "optim.lr": {"low": 0.01, "high": 1.0, "log": True},
        "batch_size": [32, 64, 128],
    }


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("train.py", "import os\nlr = float(os.environ.get('LR', '0.1'))\n", "LR={LR} python train.py"),
        ("train.py", "import os\nlr = float(os.environ['LR'])\n", "LR={LR} python train.py"),
        ("run.sh", "LR=${LR:-0.1}\npython train.py --lr $LR --seed ${SEED:-1}\n", "LR={LR} bash run.sh"),
        ("run.sh", "LR=${LR:-$(cat lr)}\nWD=$1\npython train.py --lr $LR --wd ${WD:-0.1}\n", "LR={LR} bash run.sh"),
        (
            "run.sh",
            "LR=${LR:?give it}\nread -r DEPTH WD <x\npython train.py --wd $WD --lr $LR\n",
            "LR={LR} bash run.sh",
        ),
        ("run.sh", ". ./own.sh\nsource $(dirname $0)/own.sh\npython train.py $WD $LR\n", "LR={LR} bash run.sh"),
        ("run.sh", "python train.py --lr ${LR:-0.1} --out ${OUT:-./out}\n", "LR={LR} OUT={trial_dir} bash run.sh"),
        ("run.sh", "for I in 1 2; do python train.py --lr $LR; done\n", "LR={LR} bash run.sh"),
    ],
)
def test_variables_are_varied_if_there_are_no_options(tmp_path, monkeypatch, name, text, command):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    Path("own.sh").write_text("export WD=0.1\n")
    read = Script(Path(name), (), library="shell", program=("bash",)) if name == "run.sh" else read_script(Path(name))
    script, varied = find_varied(read, ())
    assert list(varied) == ["LR"]
    assert build_command(script, varied) == command


def test_a_script_of_hydra_gets_variables_as_such(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import hydra, os\n@hydra.main()\ndef main(cfg):\n    print(os.environ['LR'])\n")
    script, varied = find_varied(read_script(path), ())
    assert build_command(script, varied) == f"LR={{LR}} python {path}"


def test_a_file_of_data_is_no_reason_to_stop(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    Path("data.json").write_text('{"a": 1}\n{"a": 2}\n')
    options = (ScriptOption("--temperature", default=2.0), ScriptOption("--data"))
    caplog.set_level("INFO")
    assert list(find_varied(Script(Path("x.py"), options), ["--data", "data.json"])[1]) == ["temperature"]
    assert "data.json, line 2, column 1: not valid JSON" in caplog.text
    caplog.clear()
    assert list(find_varied(Script(Path("x.py"), (*options, LR)), ["--data", "data.json"])[1]) == ["lr"]
    assert not caplog.text


def test_a_number_without_an_end_is_not_varied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("conf.yaml").write_text("clip: .inf\ntemperature: 0.5\n")
    assert list(find_varied(Script(Path("x.py"), ()), ["conf.yaml"])[1]) == ["temperature"]


def test_the_first_numbers_and_choices_are_varied_if_no_name_is_usual(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [
        ScriptOption("--epochs", default=10),
        ScriptOption("--temperature", default=0.5),
        ScriptOption("--kernel", default="rbf", choices=("rbf", "linear")),
        ScriptOption("--seed", default=1),
        ScriptOption("--name", default="x"),
    ]
    sweep = written(tmp_path, *options)
    assert sweep["sample"]["values"] == {
        "temperature": {"low": 0.05, "high": 1.0, "log": True},
        "kernel": ["rbf", "linear"],
    }
    assert "# TODO: nothing that a sweep usually varies was found" in (tmp_path / "trainyard.yaml").read_text()


def test_a_value_that_is_typed_in_its_place_is_not_missing(tmp_path):
    script = Script(Path("train.py"), (LR, ScriptOption("data", is_required=True)), words=("--amp", "x", "data/"))
    assert missing_options(script, {}) == []
    assert missing_options(replace(script, words=("--amp", "x")), {}) == ["data"]


def test_constants_with_the_name_of_a_setting_are_named(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("LR = 0.1\nDATA = 'x'\nBATCH_SIZE = 64\n")
    assert find_constants(read_script(path)) == [f"LR = 0.1 in {path}, line 1", f"BATCH_SIZE = 64 in {path}, line 3"]
