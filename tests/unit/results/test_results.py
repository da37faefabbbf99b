"""Results as data frames."""

import subprocess
import sys

import pandas as pd
import pytest
from project import ROOT
from trainyard.results import load_study, load_sweep
from trainyard.utils.csv_files import read_table, write_table
from trainyard.utils.errors import UserError


def write_sweep(folder, *, best):
    trials = pd.DataFrame({"trial": ["a", "b"], "lr": [0.1, 0.2], "val_accuracy": [0.5, 0.6]})
    ranking = pd.DataFrame({"place": [1, 2] if best else None, "lr": [0.2, 0.1], "trial": ["b", "a"]})
    others = dict.fromkeys(("epochs", "timeline", "strategies", "jobs"), trials)
    for name, frame in {"trials": trials, "ranking": ranking, **others}.items():
        write_table(frame, folder / f"{name}.csv")


def test_a_sweep_is_read_as_data_frames(tmp_path):
    write_sweep(tmp_path / "sweeps/lr", best=True)
    sweep = load_sweep(str(tmp_path / "sweeps/lr"))
    assert (sweep.name, len(sweep.trials), len(sweep.timeline)) == ("lr", 2, 2)
    assert sweep.best["lr"] == 0.2


@pytest.mark.parametrize("name", ["0012345678", "12345e6789", "1234567890"])
def test_an_identity_that_looks_like_a_number_is_text(tmp_path, name):
    write_table(pd.DataFrame({"trial": [name], "lr": [0.1]}), tmp_path / "trials.csv")
    table = read_table(tmp_path / "trials.csv")
    assert (table["trial"][0], table["lr"][0]) == (name, 0.1)


def test_a_sweep_without_a_best_trial_says_so(tmp_path):
    """Its trials have finished, but are beyond its constraints."""
    write_sweep(tmp_path / "lr", best=False)
    with pytest.raises(LookupError, match="no configuration of sweep lr has finished with the metric"):
        load_sweep(tmp_path / "lr").best  # noqa: B018


def test_a_sweep_that_has_not_finished_says_so(tmp_path):
    with pytest.raises(UserError, match=r"trials.csv does not exist: Snakemake runs the job that writes it"):
        load_sweep(tmp_path)


def test_a_study_is_read_with_the_history_of_all_its_runs(tmp_path):
    write_table(pd.DataFrame({"scale": ["1x1", "2x1"], "repeats": [2, 1]}), tmp_path / "scaling.csv")
    for run, loss in (("1x1", 1.0), ("1x1/repeat-2", 2.0), ("2x1", 3.0)):
        write_table(pd.DataFrame({"epoch": [1, 2], "val_loss": loss}), tmp_path / run / "history.csv")
    study = load_study(tmp_path)
    last = study.history[study.history["epoch"] == 2].drop(columns="epoch")
    assert last.to_dict("list") == {"val_loss": [1.0, 2.0, 3.0], "scale": ["1x1", "1x1", "2x1"], "repeat": [1, 2, 1]}


def test_the_library_of_notebooks_imports_nothing_heavy_before_it_reads():
    """The ranking is in the same package, and a dry run imports it."""
    code = "import sys, trainyard.results.best_config; print({'pandas', 'torch', 'ray', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
