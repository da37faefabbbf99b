"""What is missing, what it will ask for and cost: the rows of a plan, by hand."""

import io
import json
import math
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from snakemake.resources import Resources
from sweep_journals import session_of
from trainyard.cli import profile
from trainyard.cli.plan_table import plan_table
from trainyard.cli.profile import Profile
from trainyard.cli.workflow import Workflow
from trainyard.cluster.slurm_limits import JobLimits, Limits
from trainyard.cluster.slurm_queries import parse_partition
from trainyard.config.load import check_config
from trainyard.config.trials import result_digest
from trainyard.planning import job_costs
from trainyard.planning.job_costs import (
    brief_plan,
    describe_scale,
    plan_scale,
    planned_alternatives,
    summarize_cost,
    summarize_plan,
)
from trainyard.planning.memory_request import NodeMemory
from trainyard.planning.plan import plan_sweep
from trainyard.planning.strategies import PADDING
from trainyard.planning.trial_space import NOT_STAGED

CONFIG = {
    "datasets": {"digits": {"source": "digits"}},
    "sweeps": {
        "depth": {"dataset": "digits", "grid": {"model_args.blocks": [1, 2, 3, 4]}, "slots": {"gpus_per_node": 2}}
    },
    "scaling": {"s": {"dataset": "digits", "scales": ["1x1", "1x4", "2x4"], "mode": "strong"}},
    "pricing": {"gpu_hour": 2},
}


def plan_jobs(config, results, *, runtime_minutes=None, **limits):
    def plan_of(name):
        return plan_sweep(config, name, results, **limits)

    return job_costs.plan_jobs(config, results, plan_of, runtime_minutes=runtime_minutes)


def trained(results, scale, *, gpus, seconds, device="A100", **more):
    folder = results / "scaling/s" / scale
    folder.mkdir(parents=True)
    summary = {"scale": scale, "gpus": gpus, "train_seconds": seconds, "device": device, **more}
    (folder / "summary.json").write_text(json.dumps(summary))


def launched(study):
    return {"launcher": "torchrun"} if "script" in study else {}


def finished(results, hours_by_blocks, *, gpus=1):
    trials = plan_sweep(check_config(CONFIG), "depth", results).state.trials
    with session_of(results / "sweeps/depth") as journal:
        for name, trial in trials.items():
            if hours := hours_by_blocks.get(trial.values["model_args.blocks"]):
                journal.append("started", trial=name, attempt=1, gpus_per_trial=gpus, values=trial.values)
                journal.append("finished", trial=name, attempt=1, seconds=3600.0 * hours, metrics={})


def test_every_job_that_is_missing_has_a_row(tmp_path):
    found = [(row.job, row.strategy) for row in plan_jobs(check_config(CONFIG), tmp_path)]
    assert found == [("stage digits", ""), ("sweep depth", "packed"), ("train s 1x1", ""), ("train s 1x4", ""),
                     ("train s 2x4", "")]  # fmt: skip


CHANGES = [{"retrain": 1}, {"mode": "weak"}, {"train": {"epochs": 2}}, {"train": {"model_args": {"width": 64}}}]


@pytest.mark.parametrize("change", CHANGES)
def test_results_of_another_config_are_missing(tmp_path, change):
    before = check_config(CONFIG)
    for gpus, run in ((1, "1x1"), (4, "1x4"), (8, "2x4")):
        digest = result_digest(before.scaling["s"], run, NOT_STAGED)
        trained(tmp_path, run, gpus=gpus, seconds=10, spec_digest=digest)
    after = check_config({**CONFIG, "scaling": {"s": CONFIG["scaling"]["s"] | change}})
    wanted = {"train s 1x1", "train s 1x4", "train s 2x4"}
    assert not wanted & {row.job for row in plan_jobs(before, tmp_path)}
    assert wanted & {row.job for row in plan_jobs(after, tmp_path)} == wanted


def test_trials_on_two_gpus_are_planned_and_charged_as_slots_of_two(tmp_path):
    """Four trials of one to four hours, two of which have ended, on two slots of four GPUs."""
    finished(tmp_path, {1: 1.0, 2: 2.0}, gpus=2)
    slots = {"gpus_per_node": 4, "gpus_per_trial": 2}
    config = check_config({**CONFIG, "sweeps": {"depth": {**CONFIG["sweeps"]["depth"], "slots": slots}}})
    plan = plan_sweep(config, "depth", tmp_path)
    assert "2 of 4 trials pending; requests 2 slots of 2 GPUs and 1 CPU; predicted" in summarize_plan(plan)
    separate, array = planned_alternatives(plan)
    for row in (separate, array):
        assert row.makespan_lower_bound_seconds == pytest.approx(4 * 3600, rel=0.05)
        assert row.running_unit_seconds == pytest.approx(2 * 7 * 3600, rel=0.05)
    assert (array.jobs, array.units_per_job, array.units_total) == (2, 2, 4)
    assert array.requested_unit_seconds == pytest.approx(PADDING * 2 * 8 * 3600, rel=0.05)
    assert separate.requested_unit_seconds == pytest.approx(PADDING * 2 * 7 * 3600, rel=0.05)


def test_durations_on_another_number_of_gpus_predict_until_there_are_better_ones(tmp_path):
    slots = {"gpus_per_node": 4, "gpus_per_trial": 2}
    config = check_config({**CONFIG, "sweeps": {"depth": {**CONFIG["sweeps"]["depth"], "slots": slots}}})
    finished(tmp_path, {1: 1.0, 2: 2.0}, gpus=1)
    assert plan_sweep(config, "depth", tmp_path).predicted_seconds == pytest.approx(4 * 3600, rel=0.05)
    finished(tmp_path, {3: 1.5}, gpus=2)
    assert plan_sweep(config, "depth", tmp_path).predicted_seconds < 3 * 3600


def test_a_sweep_stands_beside_other_ways_to_run_it(tmp_path):
    finished(tmp_path, {1: 1.0, 2: 2.0})  # left are 3 and 4: three and four hours on two GPUs
    found = {row.strategy: row for row in plan_jobs(check_config(CONFIG), tmp_path, runtime_minutes=60) if row.pending}
    packed, array = found["packed"], found["job_array"]
    assert (packed.pending, packed.total, packed.jobs, packed.gpus) == (2, 4, 1, 2)
    assert packed.predicted_seconds == pytest.approx(4 * 3600, rel=0.05)
    assert packed.predicted_gpu_hours == pytest.approx(2 * (packed.predicted_seconds + 60) / 3600)
    assert packed.predicted_cost == pytest.approx(2 * packed.predicted_gpu_hours)
    assert packed.asked_gpu_hours == pytest.approx(2 * packed.walltime_minutes / 60)
    assert packed.walltime_minutes * 60 >= min(packed.predicted_high_seconds, 7 * 3600), "at most one after another"
    assert (array.jobs, array.gpus, array.asked_gpu_hours) == (2, 1, pytest.approx(PADDING * 8, rel=0.05))
    assert found["separate_jobs"].asked_gpu_hours == pytest.approx(PADDING * 7, rel=0.05)
    assert array.predicted_gpu_hours == pytest.approx(7, rel=0.05), "each task ends with its trial"
    assert packed.basis == "2 measured trials"
    limited = next(
        row
        for row in plan_jobs(check_config(CONFIG), tmp_path, runtime_minutes=60, limit_minutes=120)
        if row.strategy == "packed"
    )
    assert limited.jobs >= 3
    assert limited.walltime_minutes == 120


def test_each_way_to_run_a_sweep_has_the_nodes_of_its_trials(tmp_path):
    finished(tmp_path, {1: 1.0, 2: 2.0}, gpus=4)
    slots = {"jobs": 2, "nodes_per_trial": 2, "gpus_per_node": 2}
    config = check_config({**CONFIG, "sweeps": {"depth": {**CONFIG["sweeps"]["depth"], "slots": slots}}})
    rows = {row.strategy: (row.nodes, row.gpus) for row in plan_jobs(config, tmp_path) if row.strategy}
    assert rows == dict.fromkeys(("packed", "job_array", "separate_jobs"), (2, 4))


def test_results_that_a_change_makes_worthless_are_counted(tmp_path):
    """They have the values of a trial that is left to run."""
    finished(tmp_path, {1: 1.0, 2: 2.0})
    sweep = {**CONFIG["sweeps"]["depth"], "train": {"epochs": 7}}
    other = check_config({**CONFIG, "sweeps": {"depth": sweep}})
    config_copy = tmp_path / "configs" / "before.json"
    config_copy.parent.mkdir()
    config_copy.write_text(json.dumps(CONFIG))
    with session_of(tmp_path / "sweeps/depth") as journal:
        journal.append("session", config="before")
    assert "pending (`train` changed: 2 trials that finished before do not count)" in brief_plan(
        plan_sweep(other, "depth", tmp_path)
    )
    smaller = {**CONFIG["sweeps"]["depth"], "grid": {"model_args.blocks": [2, 3]}}
    fewer = check_config({**CONFIG, "sweeps": {"depth": smaller}})
    assert "do not count" not in brief_plan(plan_sweep(fewer, "depth", tmp_path))


def test_on_a_machine_without_a_gpu_a_plan_names_none(tmp_path):
    finished(tmp_path, {1: 1.0, 2: 2.0})
    config = check_config({**CONFIG, "scaling": {}})
    assert "requests 2 slots of 1 CPU; predicted" in summarize_plan(plan_sweep(config, "depth", tmp_path), on_cpus=True)
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_table(list(plan_jobs(config, tmp_path)), on_cpus=True))
    assert "slot-hours" in console.file.getvalue()
    assert "GPU" not in console.file.getvalue()


def test_a_sweep_without_gpus_is_planned_in_cpus(tmp_path):
    sweep = {**CONFIG["sweeps"]["depth"], "slots": {"cpus": 8, "cpus_per_trial": 4}}
    config = check_config({**CONFIG, "sweeps": {"depth": sweep}, "scaling": {}, "pricing": {"cpu_hour": 3}})
    finished(tmp_path, {1: 1.0, 2: 2.0})  # the same trials, which had run on GPUs
    plan, rows = plan_sweep(config, "depth", tmp_path), list(plan_jobs(config, tmp_path, runtime_minutes=60))
    words = f"{summarize_plan(plan)}; {summarize_cost(plan)}"
    assert "requests 2 slots of 4 CPUs; predicted" in words
    assert f"{plan.requested_hours:.3g} CPU-hours requested" in words
    assert "GPU" not in words
    packed, array = (next(row for row in rows if row.strategy == name) for name in ("packed", "job_array"))
    assert (packed.gpus, packed.cpus, array.cpus) == (0, 8, 4)
    assert packed.asked_cpu_hours == pytest.approx(8 * packed.walltime_minutes / 60)
    assert packed.predicted_cost == pytest.approx(3 * packed.predicted_cpu_hours)
    assert (packed.asked_gpu_hours, packed.predicted_gpu_hours) == (None, None)
    assert array.asked_cpu_hours == pytest.approx(PADDING * 32, rel=0.05)
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_table(rows))
    assert "CPU-hours" in console.file.getvalue()
    assert "GPU" not in console.file.getvalue()


def test_a_scale_is_foreseen_between_ideal_scaling_and_where_it_stops_paying(tmp_path):
    config = check_config(CONFIG)
    unknown = plan_scale(config, "s", "1x4", tmp_path, runtime_minutes=60)
    assert (unknown.predicted_seconds, unknown.asked_gpu_hours) == (None, 4)
    assert describe_scale(unknown) == "the time is unknown until a scale has been trained"
    trained(tmp_path, "1x1", gpus=1, seconds=7200)
    row = plan_scale(config, "s", "1x4", tmp_path, runtime_minutes=60)
    assert row.predicted_seconds == row.predicted_low_seconds == 1800
    assert row.predicted_high_seconds == pytest.approx(1800 / 0.7)
    assert describe_scale(row) == (
        "predicted 30 min 0 s (to 42 min 51 s, if it pays) of training, by ideal scaling from 1x1; 2 GPU-hours "
        "(costs 4.00)"
    )
    trained(tmp_path, "1x4", gpus=4, seconds=2000, device="cpu")
    nearest = plan_scale(config, "s", "2x4", tmp_path, runtime_minutes=None)
    assert nearest.predicted_seconds == 1000
    assert nearest.basis == "ideal scaling from 1x4, which ran on CPUs"


@pytest.mark.parametrize(("study", "seconds"), [({"dataset": "digits"}, 1800), ({"script": "train.py"}, 7200)])
def test_under_weak_scaling_more_gpus_take_fewer_steps_for_the_same_images(tmp_path, study, seconds):
    """`batch_size` is per GPU, and an epoch has all images once. What a script does with more GPUs is not known."""
    config = check_config({**CONFIG, "scaling": {"s": {"scales": ["1x1", "1x4"], **study}}})
    trained(tmp_path, "1x1", gpus=1, seconds=7200, **launched(study))
    row = plan_scale(config, "s", "1x4", tmp_path, runtime_minutes=60)
    assert row.predicted_seconds == seconds
    assert row.predicted_gpu_hours == 4 * seconds / 3600


class Resource:
    def __init__(self, raw):
        self.raw = raw


def test_after_patience_a_scale_is_foreseen_with_all_its_epochs(tmp_path):
    train = {"train": {"epochs": 10, "patience": 2}}
    config = check_config({**CONFIG, "scaling": {"s": CONFIG["scaling"]["s"] | train}})
    trained(tmp_path, "1x1", gpus=1, seconds=720, epochs=5)
    assert plan_scale(config, "s", "1x4", tmp_path, runtime_minutes=60).predicted_seconds == 720 / 4 * 2


def test_after_a_quick_test_a_scale_is_foreseen_with_the_epochs_of_the_config(tmp_path):
    config = check_config({**CONFIG, "scaling": {"s": CONFIG["scaling"]["s"] | {"train": {"epochs": 90}}}})
    trained(tmp_path, "1x1", gpus=1, seconds=72, epochs=1)
    assert plan_scale(config, "s", "1x1", tmp_path, runtime_minutes=60).predicted_seconds == 72 * 90
    assert plan_scale(config, "s", "1x4", tmp_path, runtime_minutes=60).predicted_gpu_hours == 72 * 90 / 3600


@pytest.mark.parametrize("study", [{"dataset": "digits"}, {"script": "train.py", "mode": "strong"}])
def test_a_script_does_not_foresee_a_training_nor_a_training_a_script(tmp_path, study):
    """Before `train` took the place of `script`, or the reverse: the summaries are still there."""
    config = check_config({**CONFIG, "scaling": {"s": {"scales": ["1x1", "1x4"], **study}}})
    other = {} if "script" in study else {"script": "train.py"}
    trained(tmp_path, "1x1", gpus=1, seconds=7200, epochs=0, **launched(other))
    row = plan_scale(config, "s", "1x4", tmp_path, runtime_minutes=60)
    assert (row.predicted_seconds, row.basis) == (None, "no evidence")


def test_a_partitions_limit_becomes_the_limit_of_the_plan(tmp_path, monkeypatch):
    lines = ["cpu*|up|1-00:00:00|1|8|1000|(null)|(null)", "gpu|up|2:00:00|1|8|1000|gpu:4|(null)"]
    monkeypatch.setattr(profile, "list_partitions", lambda: [parse_partition(line) for line in lines])
    finished(tmp_path, {1: 1.0, 2: 2.0})
    defaults = {"runtime": Resource(60), "slurm_partition": Resource("gpu")}
    yard = Workflow(CONFIG, results=tmp_path, profile=Profile(defaults))
    assert yard.sweep.limit_minutes("depth") == 120
    here = Workflow(CONFIG, results=tmp_path)
    assert here.sweep.limit_minutes("depth") == math.inf
    long = {"sweep": {"slurm_partition": Resource("cpu")}, "train": {"slurm_partition": Resource("gpu")}}
    moved = Workflow(CONFIG, results=tmp_path, profile=Profile(defaults, set_resources=long))
    assert moved.sweep.limit_minutes("depth") == 1440, "of the partition of the rule"


def test_a_walltime_that_is_set_for_a_rule_is_that_of_its_jobs_in_the_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "list_partitions", list)
    rules = {"sweep": {"runtime": Resource(300)}, "train": {"runtime": Resource(45)}, "stage": {"runtime": Resource(5)}}
    yard = Workflow(CONFIG, results=tmp_path, profile=Profile({"runtime": Resource(60)}, set_resources=rules))
    found = {row.job: row for row in yard.planned_jobs() if row.is_submitted}
    assert {job: row.walltime_minutes for job, row in found.items()} == {
        "stage digits": 5, "sweep depth": 300, "train s 1x1": 45, "train s 1x4": 45, "train s 2x4": 45
    }  # fmt: skip
    assert found["sweep depth"].asked_gpu_hours == 300 / 60 * found["sweep depth"].gpus


def test_the_plan_counts_all_jobs_of_a_sweep_with_several(tmp_path):
    config = {**CONFIG, "sweeps": {"depth": CONFIG["sweeps"]["depth"] | {"slots": {"jobs": 2, "gpus_per_node": 1}}}}
    rows = plan_jobs(check_config(config), tmp_path, runtime_minutes=60)
    row = next(each for each in rows if each.strategy == "packed")
    assert (row.job, row.jobs, row.gpus, row.walltime_minutes, row.asked_gpu_hours) == ("sweep depth", 2, 1, 60, 2)


def test_a_plan_counts_the_jobs_for_the_gpus_that_the_accounting_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "list_partitions", lambda: [parse_partition("gpu*|up|2:00:00|1|8|1000|gpu:8|(null)")])
    monkeypatch.setattr(profile, "find_limits", lambda *_: JobLimits((Limits("QOS", {"gres/gpu in all jobs": 1}),)))
    config = {**CONFIG, "sweeps": {"depth": CONFIG["sweeps"]["depth"] | {"slots": "auto"}}}
    finished(tmp_path, {1: 1.0, 2: 2.0})
    yard = Workflow(config, results=tmp_path, profile=Profile({"runtime": Resource(60)}))
    jobs = yard.sweep.plan("depth").jobs
    assert jobs > plan_sweep(check_config(config), "depth", tmp_path, limit_minutes=120).jobs


SCRIPT = {"script": "train.py", "scales": ["1x1", "1x4"]}


@pytest.mark.parametrize(("study", "runtime", "words"), [
    ({}, 120, ""),
    ({}, 40, "; at least 2 jobs one after another, with a walltime of 40 min 0 s"),
    (SCRIPT, 40, "; longer than the walltime of 40 min 0 s, and it cannot resume: set `walltime`"),
    (SCRIPT | {"checkpoint": "*.pt"}, 40, "; at least 2 jobs one after another, with a walltime of 40 min 0 s"),
    ({}, 180, "; above the limit: 3 h 0 min of walltime, but a job may take 2 h 0 min at most: lower `walltime`, or "
     "`runtime` in the profile"),
])  # fmt: skip
def test_a_scale_that_its_walltime_does_not_suit_says_so(tmp_path, monkeypatch, study, runtime, words):
    monkeypatch.setattr(profile, "list_partitions", lambda: [parse_partition("gpu*|up|2:00:00|1|16|1000|gpu:4|(null)")])
    config = CONFIG if not study else {"scaling": {"s": study}}
    trained(tmp_path, "1x1", gpus=1, seconds=3600 if study else 4 * 3600, epochs=1, **launched(study))
    yard = Workflow(config, results=tmp_path, profile=Profile({"runtime": Resource(runtime)}))
    said = yard.train.summary(SimpleNamespace(name="s", scale="1x4"), attempt=1).partition("; python is")[0]
    assert re.sub(r".*GPU-hours( \(costs [0-9.]+\))?", "", said) == words


def test_a_job_without_gpus_says_that_its_walltime_is_above_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "list_partitions", lambda: [parse_partition("gpu*|up|2:00:00|1|8|1000|gpu:4|(null)")])
    defaults = {"runtime": Resource(60)}

    def summary(workflow):
        return workflow.stage.summary(SimpleNamespace(name="a"), attempt=1)

    for minutes, excess in ((120, ""), (180, "; above the limit: 3 h 0 min of walltime, but a job may take 2 h 0 min")):
        settings = {"stage": {"runtime": Resource(minutes)}}
        yard = Workflow(CONFIG, results=tmp_path, profile=Profile(defaults, set_resources=settings))
        assert summary(yard).startswith("dataset a: staging" + excess)
        assert summary(yard).endswith(" in the profile") == bool(excess)
    here = Workflow(CONFIG, results=tmp_path)
    assert summary(here) == "dataset a: staging"


def test_a_walltime_that_is_an_expression_is_that_of_the_first_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "list_partitions", list)

    def walltimes():
        yard = Workflow(CONFIG, results=tmp_path, profile=Profile(defaults))
        return {row.walltime_minutes for row in yard.planned_jobs() if row.job.startswith("train")}

    defaults = dict(Resources.parse(["runtime=90 * attempt"], allow_expressions=True))
    assert walltimes() == {90}
    defaults = dict(Resources.parse(["runtime=input.size_mb"], allow_expressions=True))
    assert walltimes() == {None}


def test_a_partition_file_limits_the_walltime_and_the_memory(tmp_path, monkeypatch):
    lines = [
        "cpu*|up|1-0|1|8|1000|(null)|(null)",
        "gpu|up|5:00:00|1|8|9000|gpu:4|(null)",
        "big|up|1-0|1|8|99000|gpu:4|a",
    ]
    monkeypatch.setattr(profile, "list_partitions", lambda: [parse_partition(line) for line in lines])
    path = tmp_path / "partitions.yaml"
    path.write_text("partitions: {gpu: {max_runtime: 120, max_gpu: 4}}")
    settings = type("Settings", (), {"partition_config": path})
    runtime = {"runtime": Resource(60)}
    found = profile.Profile(runtime, lambda: settings)
    assert found.limit_minutes("sweep", 2) == 120, "the file allows less than Slurm"
    assert found.node_memory("sweep", 2) == NodeMemory(9000, 4500)
    fixed = profile.Profile(runtime | {"slurm_partition": Resource("big")}, lambda: settings)
    assert fixed.limit_minutes("sweep", 2) == 24 * 60, "the plugin prefers slurm_partition to the file"
