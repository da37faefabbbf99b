"""The jobs of a sweep with several: which rule makes its tables, how many there are, and what is said of each."""

import os
from types import SimpleNamespace

import pytest
from snakemake.settings.types import ResourceSettings
from sweep_journals import record_attempt
from trainyard.cli.job_resources import USEFUL_JOBS
from trainyard.cli.profile import Profile
from trainyard.cli.snakefile import _share_settings
from trainyard.cli.workflow import RUN, Workflow
from trainyard.planning.job_marks import COMPLETE
from trainyard.planning.journal import Journal


def sweep(jobs, count=4, **changes):
    own = {"function": "mine:run", "grid": {"x": list(range(count))}, "metric": "loss"}
    return {**own, "slots": {"jobs": jobs, "gpus_per_node": 1}, **changes}


def yard_of(results, **sweeps):
    return Workflow({"sweeps": sweeps}, results=results, profile=Profile({"runtime": SimpleNamespace(raw="60")}))


def finish(results, name, count, **sweeps):
    trials = list(yard_of(results, **sweeps).sweep.plan(name).state.trials)
    with Journal.of_new_session(results / f"sweeps/{name}") as journal:
        for trial in trials[:count]:
            record_attempt(journal, trial, seconds=1.0, metrics={"loss": 0.0})


def wildcards_of(name, job):
    return SimpleNamespace(name=name, job=str(job))


@pytest.mark.parametrize(
    ("sweeps", "one", "several"),
    [
        ({"a": sweep(1), "b": sweep(3), "c": sweep(8)}, "a", "b|c"),
        ({"a": sweep(1)}, "a", "(?!)"),
        ({"b-1": sweep(3)}, "(?!)", r"b\-1"),
    ],
)
def test_each_sweep_has_one_rule_that_makes_its_tables(tmp_path, sweeps, one, several):
    jobs = yard_of(tmp_path, **sweeps).sweep
    assert (jobs.names(several_jobs=False), jobs.names(several_jobs=True)) == (one, several)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 4),
        ({"slots": {"jobs": 8, "gpus_per_node": 2}}, 2),
        ({"slots": {"jobs": 8, "gpus_per_node": 2}, "goal": "fastest"}, 4),
        ({"grid": {}, "search": {"method": "random", "trials": 6, "values": {"x": {"low": 0, "high": 1}}}}, 6),
    ],
)
def test_snakemake_knows_as_many_jobs_as_the_trials_can_use_whatever_is_pending(tmp_path, changes, count):
    """Other inputs would be a reason for Snakemake to make the tables again."""
    sweeps = {"s": {**sweep(8), **changes}}
    marks = [f"{tmp_path}/sweeps/s/jobs/{job}.done" for job in range(count)]
    assert yard_of(tmp_path, **sweeps).job_marks(SimpleNamespace(name="s")) == marks
    if not sweeps["s"].get("search"):
        finish(tmp_path, "s", 4, **sweeps)
        assert yard_of(tmp_path, **sweeps).job_marks(SimpleNamespace(name="s")) == marks


@pytest.mark.parametrize(("finished", "useful"), [(0, 3), (2, 2), (3, 1), (4, 0)])
def test_no_more_jobs_are_submitted_than_find_a_trial(tmp_path, finished, useful):
    sweeps = {"s": sweep(3)}
    finish(tmp_path, "s", finished, **sweeps)
    jobs = yard_of(tmp_path, **sweeps).sweep
    assert jobs.resources()[USEFUL_JOBS](wildcards_of("s", 2), attempt=1) == useful
    words = [jobs.summary(wildcards_of("s", job), 1) for job in range(3)]
    assert words[0].startswith(f"sweep s: {4 - finished} of 4 trials pending")
    idle = ", only if it is needed"
    assert words[1:] == [f"sweep s: job {job + 1} of 3{idle if job >= useful else ''}" for job in (1, 2)]


def test_the_dry_run_says_how_many_jobs_of_what_size_are_requested(tmp_path):
    assert "; 3 GPU-hours requested (3 x 1 GPU x 60 min)" in yard_of(tmp_path, s=sweep(3)).sweep.summary(
        wildcards_of("s", 0), 1
    )


def test_a_sweep_with_one_job_has_no_resource_of_several(tmp_path):
    found = yard_of(tmp_path, s=sweep(1)).sweep.resources()[USEFUL_JOBS]
    assert found(SimpleNamespace(name="s"), attempt=1) is None


@pytest.mark.parametrize(("finished", "stays"), [(3, False), (4, True)])
def test_a_run_with_pending_trials_forgets_that_none_was_left(tmp_path, monkeypatch, finished, stays):
    monkeypatch.setenv(RUN, "")
    monkeypatch.delenv(RUN)
    sweeps = {"s": sweep(3)}
    finish(tmp_path, "s", finished, **sweeps)
    mark = tmp_path / "sweeps/s/jobs" / COMPLETE
    mark.parent.mkdir()
    mark.touch()
    yard_of(tmp_path, **sweeps).begin()
    assert mark.exists() is stays


def test_all_jobs_of_a_run_know_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN, "")
    monkeypatch.delenv(RUN)
    yard_of(tmp_path, s=sweep(3)).begin()
    name = os.environ[RUN]
    yard_of(tmp_path, s=sweep(3)).begin()
    assert os.environ[RUN] == name != ""


def test_after_a_failed_run_all_jobs_start_again(tmp_path):
    folder = tmp_path / "sweeps/s/jobs"
    folder.mkdir(parents=True)
    for mark in ("0.done", "2.done", COMPLETE):
        (folder / mark).touch()
    yard_of(tmp_path, s=sweep(3)).sweep.forget_ended_jobs()
    assert [mark.name for mark in folder.iterdir()] == [COMPLETE]


def test_what_is_set_for_the_rule_sweep_holds_for_jobs_of_sweeps_with_several():
    settings = ResourceSettings(
        overwrite_resources={"sweep": {"mem_mb": 1}, "train": {"mem_mb": 2}}, overwrite_threads={"sweep": 3}
    )
    shared = _share_settings(SimpleNamespace(resource_settings=settings), "sweep", "sweep_job")
    assert shared == settings.overwrite_resources
    assert shared == {"sweep": {"mem_mb": 1}, "train": {"mem_mb": 2}, "sweep_job": {"mem_mb": 1}}
    assert settings.overwrite_threads == {"sweep": 3, "sweep_job": 3}
    nothing = ResourceSettings()
    assert not _share_settings(SimpleNamespace(resource_settings=nothing), "sweep", "sweep_job")
    assert not nothing.overwrite_threads
