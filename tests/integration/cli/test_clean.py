"""What `clean.py` would remove, what it removes, and what it leaves alone."""

import json
import os
from dataclasses import replace

import pytest
from sweep_journals import session_of
from trainyard.cli.housekeeping import space_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import result_digest
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.history import dataset_digest, read_state
from trainyard.planning.journal import SESSIONS, Ended, Started
from trainyard.utils.locks import Holder, hold

TRAIN = {"model": "cnn", "epochs": 1}
CONFIG = {
    "datasets": {"digits": {"source": "digits"}},
    "sweeps": {
        "own": {"command": "true {x}", "grid": {"x": [1, 2]}, "metrics": {"pattern": "loss=(?P<loss>{number})"}},
        "depth": {"dataset": "digits", "train": TRAIN, "grid": {"lr": [0.1, 0.2]}},
    },
    "scaling": {
        "width": {"dataset": "digits", "train": TRAIN, "scales": ["1x1", "1x2"], "repeats": 2},
        "script": {"script": "t.py", "scales": ["1x1"], "checkpoint": "*.pt"},
    },
}


def write(path, size=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


@pytest.fixture
def results(project):
    """Results of CONFIG with a killed sweep of `train`, and of a study whose second scale is not trained."""
    project.write(CONFIG)
    root, config = project.results, check_config(CONFIG)
    for sweep in ("own", "depth"):
        state = read_state(config.sweeps[sweep], sweep, root)
        with session_of(state.folder) as journal:
            digest = metrics_digest(state.sweep.program_metrics)
            for number, name in enumerate(state.trials):
                journal.record(Started(trial=name, attempt=1))
                fields = {"metrics": {"loss": number}, "seconds": 1.0, "metrics_digest": digest}
                if sweep == "own" or number:
                    journal.record(Ended(trial=name, attempt=1, status=TrialStatus.FINISHED, **fields))
                folder = state.folder / ("trials" if sweep == "own" else "checkpoints")
                write(folder / name / "output-1.log" if sweep == "own" else folder / name / "epoch-1.pt", 100)
                if sweep == "own":
                    write(folder / name / "large.bin", 3 * 2**20)
    for run in ("1x1", "1x1/repeat-2", "1x2"):
        write(root / "scaling/width" / run / "checkpoints/ab/epoch-1.pt", 1000)
        write(root / "scaling/width" / run / "history.csv")
    for name, run in (("width", "1x1"), ("width", "1x1/repeat-2"), ("script", "1x1")):
        digest = result_digest(config.scaling[name], run, dataset_digest(root, config.scaling[name]))
        write(root / "scaling" / name / run / "summary.json").write_text(json.dumps({"spec_digest": digest}))
    out = root / "scaling/script/1x1/out" / result_digest(config.scaling["script"], "1x1", "no dataset")
    write(out / "last.pt", 1000)
    write(out / "output.log", 1000)
    for dataset in ("digits", "old"):
        write(root / "data" / dataset / "train-images.npy", 1000)
    write(root / "drill/own/interrupted/sweeps/own/trials/t/large.bin", 2**20)
    return root


def clean(project, *options, check=True):
    done = project.run(*project.script("clean", *options), check=check)
    return done.stdout + done.stderr


def rows(output):
    return [" ".join(line.split()[:4]) for line in output.splitlines() if line.split()[:1] != ["what"]]


def files_in(results):
    return {str(path.relative_to(results)) for path in results.rglob("*") if path.is_file() and path.name[0] != "."}


def test_everything_is_listed_and_nothing_removed(project, results):
    before = files_in(results)
    output = clean(project)
    assert rows(output)[:8] == [
        "trials sweep own 3.0",
        "checkpoints sweep depth 0.0",
        "checkpoints scaling study script",
        "checkpoints scaling study width",
        "data dataset digits 0.0",
        "data dataset old 0.0",
        "drill sweep own 1.0",
        "nothing is removed yet:",
    ]
    assert files_in(results) == before
    assert "nothing to remove" not in output


def test_what_is_named_is_removed_and_no_result(project, results):
    before, names = files_in(results), list(read_state(check_config(CONFIG).sweeps["own"], "own", results).trials)
    assert "removed: 3.0 MiB in 1 file" in clean(project, "trials", "--yes")
    assert before - files_in(results) == {f"sweeps/own/trials/{names[1]}/large.bin"}, "the best trial keeps its own"
    clean(project, "checkpoints", "data", "drill", "--yes")
    left = files_in(results)
    assert {path for path in left if path.endswith(".pt")} == {
        "scaling/width/1x2/checkpoints/ab/epoch-1.pt",  # it is not trained yet
        next(path for path in left if path.startswith("sweeps/depth/checkpoints")),  # its trial goes on
    }
    assert list(results.glob("scaling/script/1x1/out/*/output.log"))
    assert not [path for path in left if path.startswith(("data/", "drill/"))]
    assert {path for path in before - left if path.endswith((".json", ".csv", ".jsonl", ".log"))} == set()


def test_a_training_without_checkpoints_keeps_its_results_when_its_job_runs_again(project, results):
    """Snakemake removes them first, for example after the dataset was staged again."""
    run = results / "scaling/width/1x1/repeat-2"
    (run / "history.csv").write_text("epoch\n1\n")
    before = {name: (run / name).read_text() for name in ("history.csv", "summary.json")}
    clean(project, "checkpoints", "--yes")
    assert "scaling study width" not in clean(project), "there is nothing left to remove"
    for name in before:
        (run / name).unlink()
    output = project.run(*project.script("train", "--study", "width", "--scale", "1x1/repeat-2")).stdout
    assert "already trained: its checkpoints were removed, but not its results" in output
    assert {name: (run / name).read_text() for name in before} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--yes"], "--yes: name what to remove: trials, checkpoints, data, drill, or several of them"),
        (["trails"], "'trails' cannot be removed; did you mean 'trials'?"),
    ],
)
def test_mistakes_remove_nothing(project, results, options, message):
    before = files_in(results)
    assert message in clean(project, *options, check=False)
    assert files_in(results) == before


def test_nothing_is_removed_while_a_process_works_there(project, results):
    before = files_in(results)
    with hold(results / "scaling/width/1x2/.lock", purpose="a training"):
        output = clean(project, "data", "--yes", check=False)
    assert f"nothing is removed: results/scaling/width/1x2 is in use by process {os.getpid()}" in output.replace(
        str(results.parent) + "/", ""
    )
    beat = results / "drill/own/interrupted/sweeps/own" / SESSIONS / "0-local.0-87654321.beat"
    write(beat).write_bytes(Holder.this_process().encode())
    assert "drill/own/interrupted/sweeps/own is in use by" in clean(project, "drill", "--yes", check=False)
    beat.unlink()
    beat = results / "sweeps/own" / SESSIONS / "0-local.0-12345678.beat"
    beat.write_bytes(Holder.this_process().encode())
    assert f"sweeps/own is in use by process {os.getpid()} on" in clean(project, "data", "--yes", check=False)
    assert files_in(results) - {str(beat.relative_to(results))} == before
    beat.write_bytes(replace(Holder.this_process(), started=0).encode())  # it was killed
    clean(project, "data", "--yes")
    assert not (results / "data/digits").exists()


def test_nothing_outside_of_the_results_is_removed(project, results, tmp_path):
    outside = tmp_path / "elsewhere"
    (results / "data/digits").rename(outside)
    (results / "data/digits").symlink_to(outside)
    (results / "scaling/width/1x1").rename(tmp_path / "scale")
    (results / "scaling/width/1x1").symlink_to(tmp_path / "scale")
    output = clean(project, "data", "checkpoints", "--yes")
    assert (outside / "train-images.npy").exists()
    assert (tmp_path / "scale/checkpoints/ab/epoch-1.pt").exists()
    assert "dataset old" in output
    assert "dataset digits" not in output


def test_the_space_of_a_file_with_two_names_counts_once(tmp_path):
    one = write(tmp_path / "a/one", 2**20)
    (tmp_path / "a/two").hardlink_to(one)
    (tmp_path / "a/link").symlink_to("/")
    used, files = space_of([tmp_path / "a"])
    assert files == 2
    assert 2**20 <= used < 1.1 * 2**20
