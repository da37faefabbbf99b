"""optuna-dashboard, and Optuna itself, show the trials of a sweep as its journal has them, also while it runs."""

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from urllib.error import HTTPError

import optuna
import psutil
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from project import ROOT
from slurm_cluster.waiting import wait_until
from sweep_journals import record_draws, write_session
from trainyard.config.load import check_config
from trainyard.planning.history import read_state
from trainyard.planning.journal import Suggested
from trainyard.report.dashboard import add_study, write_studies

TRIALS = [
    {"lr": 0.001, "width": 8, "optimizer": "sgd"},
    {"lr": 0.01, "width": 16, "optimizer": "adam"},
    {"lr": 0.1, "width": 8, "optimizer": "adam"},
    {"lr": 1.0, "width": 32, "optimizer": None},
]
SWEEP = {"function": "os:getcwd", "args": {"dropout": 0.1}, "trials": TRIALS, "metric": "loss"}


class Journal:
    """The config and the journal of a sweep, which the test writes."""

    def __init__(self, folder, **options):
        content = {"sweeps": {"other": {**SWEEP, "trials": TRIALS[:1]}, "mine": SWEEP | options}}
        self.config, self.results, self.time = check_config(content), folder / "results", 1_800_000_000.0
        (folder / "my.yaml").write_text(json.dumps(content))
        self.names = list(self.state.trials)
        self.path = write_session(self.results / "sweeps/mine", [{"event": "session", "time": self.time}])

    @property
    def state(self):
        return read_state(self.config.sweeps["mine"], "mine", self.results)

    def record(self, trial, *events, attempt=1):
        with open(self.path, "a") as file:
            for event, fields in events:
                self.time += 1
                about = {"trial": self.names[trial], "attempt": attempt, "time": self.time}
                file.write(json.dumps({"event": event, **about, **fields}) + "\n")

    def study(self):
        storage = optuna.storages.InMemoryStorage()
        add_study(self.state, storage)
        return optuna.load_study(study_name="mine", storage=storage)


def epochs(*losses):
    rows = ({"epoch": number, "loss": loss} for number, loss in enumerate(losses, start=1))
    return [("epoch", {"metrics": row}) for row in rows]


def finished(loss, **more):
    return ("finished", {"metrics": {"loss": loss, **more}, "seconds": 3.0})


STARTED = ("started", {})


def test_trials_have_the_states_values_and_curves_of_the_journal(tmp_path):
    journal = Journal(tmp_path, stop={"method": "asha"})
    sweep = journal.config.sweeps["mine"]
    rule = sweep.stop.rule(*sweep.compared_by)
    journal.record(0, STARTED, *epochs(0.5, 0.25), finished(0.25, accuracy=0.9))
    journal.record(1, STARTED, *epochs(0.75), ("stopped", {"metrics": {"loss": 0.75}, "seconds": 1.0, "rule": rule}))
    journal.record(2, STARTED, *epochs(0.5))
    study = journal.study()
    assert [each.state for each in study.trials] == [
        TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.WAITING
    ]  # fmt: skip
    assert study.direction.name == "MINIMIZE"
    assert study.metric_names == ["loss"]
    assert [each.value for each in study.trials] == [0.25, 0.75, None, None]
    assert [each.intermediate_values for each in study.trials] == [{1: 0.5, 2: 0.25}, {1: 0.75}, {1: 0.5}, {}]
    assert [each.params for each in study.trials] == TRIALS
    assert [each.user_attrs["trial"] for each in study.trials] == journal.names
    assert study.trials[0].user_attrs["accuracy"] == 0.9
    first = study.trials[0]
    assert first.datetime_start.timestamp() == 1_800_000_001.0
    assert first.datetime_complete.timestamp() == 1_800_000_004.0
    assert first.distributions == {
        "lr": FloatDistribution(0.001, 1.0, log=True),
        "width": IntDistribution(8, 32),
        "optimizer": CategoricalDistribution(["sgd", "adam", None]),
    }


def test_what_has_no_value_is_not_complete(tmp_path):
    journal = Journal(tmp_path)
    journal.record(0, STARTED, ("diverged", {"error": "loss is nan", "seconds": 1.0}))
    journal.record(1, STARTED, ("failed", {"error": "RuntimeError", "seconds": 1.0}))
    journal.record(2, STARTED, *epochs(0.5), ("failed", {"error": "RuntimeError", "seconds": 1.0, "retried": True}))
    journal.record(3, STARTED, *epochs(0.5), ("interrupted", {}))
    fail, waiting = TrialState.FAIL, TrialState.WAITING
    assert [each.state for each in journal.study().trials] == [fail, fail, waiting, waiting]
    journal.record(2, STARTED, finished(0.5), attempt=2)
    assert journal.study().best_trial.number == 2
    again = Journal(tmp_path, retrain=1)
    assert {each.state for each in again.study().trials} == {waiting}, "results of before retrain do not count"


def test_a_search_has_the_values_of_lists_and_the_scale_of_ranges(tmp_path):
    """A trial that was not drawn may be outside of them."""
    width = {"low": 7.5, "high": 64, "integer": True}
    values = {"lr": {"low": 0.001, "high": 1, "log": True}, "optimizer": ["sgd", ["adam"]], "width": width}
    given = {"lr": 2.0, "optimizer": "lion", "width": 9}
    journal = Journal(tmp_path, trials=[given], search={"trials": 5, "values": values})
    drawn = {
        "values": {"lr": 0.01, "optimizer": ["adam"], "width": 9},
        "params": {"lr": 0.01, "optimizer": 1, "width": 9},
    }
    record_draws(journal.state.folder, Suggested(search=journal.state.space.search_key, attrs={}, **drawn))
    _, trial = journal.study().trials
    assert trial.params == {"lr": 0.01, "optimizer": "['adam']", "width": 9}
    assert trial.distributions == {
        "lr": FloatDistribution(0.001, 2.0, log=True),
        "optimizer": CategoricalDistribution(["sgd", "['adam']", "lion"]),
        "width": IntDistribution(8, 64),
    }


def test_several_objectives_have_a_pareto_front(tmp_path):
    limits = {"mib": {"max": 100}}
    journal = Journal(tmp_path, metric=None, objectives={"loss": "min", "accuracy": "max"}, constraints=limits)
    for trial, (loss, accuracy, mib) in enumerate([(0.5, 0.5, 50), (0.25, 0.25, 50), (0.5, 0.25, 50), (0.1, 0.9, 200)]):
        journal.record(trial, STARTED, finished(loss, accuracy=accuracy, mib=mib))
    study = journal.study()
    assert [each.number for each in study.best_trials] == [0, 1]
    assert study.metric_names == ["loss", "accuracy"]
    assert study.trials[3].system_attrs["constraints"] == [100], "as optuna-dashboard reads them"


def test_without_a_metric_all_that_trials_report_are_objectives(tmp_path):
    journal = Journal(tmp_path, metric=None)
    journal.record(0, STARTED, finished(0.5, accuracy=0.75))
    study = journal.study()
    assert study.trials[0].values == [0.5, 0.75]
    assert [each.name for each in study.directions] == ["MINIMIZE", "MAXIMIZE"]


def test_a_key_that_is_null_in_a_trial_has_categories(tmp_path):
    assert Journal(tmp_path, trials=[], grid={"wd": [None, 0.2]}).study().trials[1].distributions == {
        "wd": CategoricalDistribution([None, 0.2])
    }


def test_optuna_loads_the_studies_from_a_file(tmp_path):
    journal = Journal(tmp_path)
    for trial, loss in enumerate([0.5, 0.25, 0.75]):
        journal.record(trial, STARTED, finished(loss))
    path = tmp_path / "studies.log"
    for _ in range(2):  # the second replaces the first
        write_studies(journal.config, journal.results, path)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    assert optuna.get_all_study_names(storage) == ["other", "mine"]
    study = optuna.load_study(study_name="mine", storage=storage)
    assert study.best_params == TRIALS[1]


@contextmanager
def dashboard(folder, *options):
    """The address of the dashboard of my.yaml, what it printed, and its process."""
    call = [sys.executable, ROOT / "scripts/dashboard.py", "--config", "my.yaml", "--port", "0", *options]
    with subprocess.Popen(call, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        printed = ""
        while "password" not in printed and (line := process.stdout.readline()):
            printed += line
        try:
            yield re.search(r"http://\S+?:\d+", printed)[0], printed, psutil.Process(process.pid)
        finally:
            process.terminate()
            assert process.wait(60) == 0, process.stdout.read()


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def test_the_dashboard_follows_the_journal(tmp_path):
    journal = Journal(tmp_path)
    journal.record(0, STARTED, *epochs(0.5, 0.25), finished(0.25))
    journal.record(1, STARTED, *epochs(0.75))
    with dashboard(tmp_path) as (address, printed, process):
        port = int(address.rpartition(":")[2])
        assert f"ssh -N -L {port}:127.0.0.1:{port} " in printed
        assert "no password" in printed
        assert {each.laddr.ip for each in process.net_connections() if each.status == "LISTEN"} == {"127.0.0.1"}
        names = {each["study_name"]: each["study_id"] for each in get(f"{address}/api/studies")["study_summaries"]}
        assert list(names) == ["other", "mine"]
        study = f"{address}/api/studies/{names['mine']}"
        assert [each["state"] for each in get(study)["trials"]] == ["Complete", "Running", "Waiting", "Waiting"]
        journal.record(1, *epochs(0.75, 0.125), finished(0.125))
        wait_until(lambda: get(study)["trials"][1]["state"] == "Complete", what="its next look at the journal")
        assert get(study)["trials"][1]["values"] == [0.125]
        for method, url in [("DELETE", study), ("POST", f"{address}/api/trials/2/tell"), ("PUT", f"{study}/note")]:
            with pytest.raises(HTTPError, match="405"):
                urllib.request.urlopen(urllib.request.Request(url, b"{}", method=method), timeout=60)
        for host, code in [("localhost:9999", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403)]:
            request = urllib.request.Request(f"{address}/api/studies", headers={"Host": host})
            try:
                found = urllib.request.urlopen(request, timeout=60).status
            except HTTPError as error:
                found = error.code
            assert found == code, host
        for refused, reason in [(port, "in use"), (99999, "not from 0 to 65535")]:
            call = [sys.executable, ROOT / "scripts/dashboard.py", "--config", "my.yaml", "--port", str(refused)]
            done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 1
            assert re.search(rf"port {refused}: .*{reason}; --port", done.stdout)
            assert "Traceback" not in done.stdout + done.stderr
