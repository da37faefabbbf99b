"""The sweeps of config/own-programs.yaml work: a trial of each runs, as a slot would run it."""

from functools import partial

import pytest
from driven import drive
from project import ROOT
from trainyard.config.load import read_config
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import expand
from trainyard.programs.metrics import MetricsCollector
from trainyard.programs.runner import ProgramRun, run_user_program, trial_command, trial_environment
from trainyard.programs.user_environment import find_interpreter, program_environment
from trainyard.utils.guarded_process import ProcessGuard

SWEEPS = read_config(ROOT / "config/own-programs.yaml").sweeps


@pytest.mark.parametrize("name", SWEEPS)
def test_a_trial_of_the_example_reports_its_metrics(tmp_path, name):
    sweep = SWEEPS[name]
    spec = expand(sweep).trials[-1].spec
    words = {"trial": "t", "attempt": 1, "trial_dir": str(tmp_path), "cpus": 1, "resume_from": "", "dataset": ""}
    environment = program_environment(find_interpreter(sweep))
    trial = ProgramRun(
        command=trial_command(spec, words),
        cwd=str(ROOT),
        environment=trial_environment(environment, trial="t", folder=tmp_path, cpus=1),
        output=tmp_path / "output",
        metrics=MetricsCollector(sweep.metrics, tmp_path),
    )
    rows, ended = drive(partial(run_user_program, trial, ProcessGuard()))
    assert ended.status == TrialStatus.FINISHED, ended
    assert ended.metrics.keys() == {"train_loss", "val_accuracy"}
    assert len(rows) == 5
    if name == "own-hydra":
        assert (tmp_path / ".hydra/overrides.yaml").read_text() == "- lr=0.1\n- model.hidden=[64,32]\n"
    else:
        assert (tmp_path / "model.pt").exists()
