"""What Slurm's queue makes of a sweep in jobs of several shapes, for given answers of Slurm, by hand."""

import math
import shlex

import pytest
from slurm_commands import SlurmCommands
from sweep_journals import record_attempt, session_of
from trainyard.cluster.slurm_queries import count_idle_gpus
from trainyard.config.load import check_config
from trainyard.planning.plan import plan_sweep
from trainyard.planning.queue_forecast import Queue, forecast_shapes, run_queued

PARTITIONS = "gpu*|up|1-00:00:00|4|8|16000|gpu:a100:2|(null)\nother|up|1:00|1|8|16000|gpu:a100:8|(null)\n"
SWEEP = {"function": "mine:run", "grid": {"x": list(range(8))}, "metric": "loss"}


def run(durations, starts, **changes):
    settings = {"slots": 1, "startup": 10.0, "window": 1000.0, "can_resume": True} | changes
    return run_queued(durations, starts, **settings)


@pytest.mark.parametrize(
    ("durations", "starts", "changes", "end", "idle"),
    [
        ([50, 40, 30], [0], {}, 130, 10),  # a start-up
        ([50, 40, 30], [0, 0], {}, 80, 20),  # 50, and 40 + 30; both start
        ([50, 40, 30], [0], {"slots": 2}, 80, 20 + 20),  # the same, but the first slot waits for the other
        ([50, 40, 30], [0, 100], {}, 130, 10),  # the second finds nothing left, and costs nothing
        ([50, 40, 30], [0, 60], {}, 100, 20),  # the first is free at 60 and takes 40, the second takes 30 at 70
        ([50, 40], [5], {"window": 60}, 15 + 60 + 5 + 10 + 30, 20),  # 60 s in a job, 30 s in the next one
        ([50, 40], [5], {"window": 60, "can_resume": False}, 15 + 60 + 5 + 10 + 40, 30),  # 10 s are lost
        ([70], [5], {"window": 60, "can_resume": False}, math.inf, math.inf),
        ([70], [5], {"window": 0}, math.inf, math.inf),
        ([70], [], {}, math.inf, math.inf),
    ],
)
def test_the_trials_of_queued_jobs_end_as_worked_out_by_hand(durations, starts, changes, end, idle):
    assert run(durations, starts, **changes) == (pytest.approx(end), pytest.approx(idle))


@pytest.fixture
def busy(slurm: SlurmCommands, tmp_path, monkeypatch) -> SlurmCommands:
    """A Slurm in which three tasks can start now, four in 100 s, eight in 500 s and no more; sbatch writes `asked`."""
    monkeypatch.chdir(tmp_path)
    slurm.prints("sinfo", PARTITIONS)
    lines = [
        'count=$(echo "$*" | sed "s/.*--ntasks=\\([0-9]*\\).*/\\1/")',
        'echo "$*" >> asked',
        "wait=500; [ $count -le 4 ] && wait=100; [ $count -le 3 ] && wait=0",
        '[ $count -le 8 ] || { echo "allocation failure" >&2; exit 1; }',
        "start=$(date --date=@$(($(date +%s) + wait)) +%Y-%m-%dT%H:%M:%S)",
        'echo "sbatch: Job 7 to start at $start using 1 processors" >&2',
    ]
    slurm.runs("sbatch", "; ".join(lines))
    return slurm


def forecast(folder, queue, slots, seconds=None, **changes):
    config = check_config({"sweeps": {"s": {**SWEEP, "slots": slots, **changes}}})
    if seconds:
        with session_of(folder / "sweeps/s") as journal:
            trials = list(plan_sweep(config, "s", folder).state.trials)
            for trial in trials[: len(trials) // 2]:
                record_attempt(journal, trial, seconds=seconds, metrics={"loss": 0.0})
    return forecast_shapes(plan_sweep(config, "s", folder), queue, config, folder)


def test_one_job_two_and_one_per_trial_are_compared(busy, tmp_path):
    queue = Queue("gpu", "a100", ("--qos=long",))
    found = forecast(tmp_path, queue, {"jobs": 4, "gpus_per_node": 2})
    sizes = [(each.jobs, each.gpus) for each in found]
    assert sizes == [(4, 2), (8, 1)], "no node has more than two GPUs"
    assert [each.is_requested for each in found] == [True, False]
    waits = [(each.first_start_seconds, each.last_start_seconds) for each in found]
    assert waits == [pytest.approx(each, abs=5) for each in [(0, 100), (0, 500)]]
    assert [each.end_seconds for each in found] == [None] * 2
    assert [each.is_recommended for each in found] == [False, True], "with the GPUs of one trial"
    asked = [dict(word.partition("=")[::2] for word in shlex.split(line)) for line in (tmp_path / "asked").open()]
    assert [line["--ntasks"] for line in asked] == [*"1423", *"1842365"], "between equal ones, nothing"
    assert {line["--gpus-per-task"] for line in asked} == {"a100:1", "a100:2"}
    assert {(line["--partition"], line["--qos"], line["--time"]) for line in asked} == {("gpu", "long", "60")}


def test_measured_durations_give_ends_and_shorter_walltimes(busy, tmp_path):
    found = forecast(tmp_path, Queue("gpu"), {"gpus_per_node": 2}, seconds=600.0, grid={"x": list(range(30))})
    one, short = found[:2]
    assert (one.jobs, one.gpus, one.is_requested, short.is_requested) == (1, 2, True, False)
    assert short.walltime_minutes < one.walltime_minutes, "that of one trial, after which another job follows"
    assert one.end_seconds == pytest.approx(60 + 8 * 600, rel=0.1), "15 trials on two GPUs after the start-up"
    assert one.idle_hours == pytest.approx((2 * 60 + 600) / 3600, rel=0.1)
    assert {(each.jobs, each.gpus) for each in found} == {(1, 2), (2, 1)}
    assert sum(each.is_recommended for each in found) == 1
    smaller = next(each for each in found if each.is_recommended)
    assert (smaller.jobs, smaller.gpus) == (2, 1), "a job gives its GPU back when no trial is left"


@pytest.mark.parametrize(
    ("slots", "limit", "seconds", "jobs"),
    [
        ({"jobs": 8, "gpus_per_node": 1}, math.inf, None, 8),
        ({"jobs": 8, "gpus_per_node": 1}, 3, None, 3),  # may run at once
        ({"gpus_per_node": 2}, math.inf, None, 2),  # as many GPUs as are requested
        ({"gpus_per_node": 8}, 0.5, None, 4),  # four GPUs may run at once
        ({"jobs": 3, "gpus_per_node": 4, "gpus_per_trial": 2}, math.inf, None, 6),
        ({"jobs": 8, "gpus_per_node": 1}, math.inf, 100.0, 2),  # 1,500 s of work, which is 2.5 times 10 start-ups
        ({"jobs": "auto"}, math.inf, 100.0, 2),
        ({"jobs": "auto"}, math.inf, None, 16),
        ({"gpus_per_node": 4, "gpus_per_trial": "auto"}, math.inf, None, 1),  # measured in one job
    ],
)
def test_what_the_plan_recommends_is_what_jobs_auto_takes(busy, tmp_path, slots, limit, seconds, jobs):
    busy.runs("sbatch", 'echo "sbatch: Job 7 to start at $(date +%Y-%m-%dT%H:%M:%S) using 1 processors" >&2')
    trains = {"dataset": "d", "grid": {"lr": [n / 100 for n in range(1, 31)]}, "slots": slots}
    own = trains if slots.get("gpus_per_trial") == "auto" else {**SWEEP, "grid": {"x": list(range(30))}, "slots": slots}
    config = check_config({"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": own}})
    plan = plan_sweep(config, "s", tmp_path, limit_jobs=limit)
    if seconds:
        with session_of(tmp_path / "sweeps/s") as journal:
            for trial in list(plan.state.trials)[:15]:
                record_attempt(journal, trial, seconds=seconds, metrics={"loss": 0.0})
        plan = plan_sweep(config, "s", tmp_path, limit_jobs=limit)
    found = forecast_shapes(plan, Queue("gpu"), config, tmp_path)
    best = [each for each in found if each.is_recommended]
    assert [each.jobs for each in best] == [jobs]
    assert best[0].is_requested == (slots.get("jobs") == "auto" or slots.get("gpus_per_trial") == "auto" or jobs == 8)


def test_a_walltime_that_is_set_is_compared_with_no_other(busy, tmp_path):
    config = check_config({"sweeps": {"s": {**SWEEP, "slots": {"gpus_per_node": 1}}}})
    forecast(tmp_path, Queue("gpu"), {"gpus_per_node": 1}, seconds=600.0)
    found = forecast_shapes(plan_sweep(config, "s", tmp_path, fixed_minutes=500), Queue("gpu"), config, tmp_path)
    assert [(each.walltime_minutes, each.is_requested) for each in found] == [(500, True)]


def test_jobs_without_gpus_ask_for_cpus(busy, tmp_path):
    slots = {"gpus_per_node": 0, "slots_per_node": 4, "cpus_per_trial": 4}
    found = forecast(tmp_path, Queue(), slots)
    assert [(each.jobs, each.cpus) for each in found] == [(1, 16), (2, 8), (4, 4)]
    assert not any("gpu" in line for line in (tmp_path / "asked").open())


def test_jobs_with_the_nodes_of_a_trial_are_compared_with_no_others(busy, tmp_path):
    sweep = {"dataset": "d", "train": {"model": "cnn"}, "grid": {"lr": [0.1, 0.2, 0.3]}}
    sweep["slots"] = {"nodes": 4, "nodes_per_trial": 2, "gpus_per_node": 2}
    config = check_config({"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": sweep}})
    (found,) = forecast_shapes(plan_sweep(config, "s", tmp_path), Queue("gpu"), config, tmp_path)
    assert (found.jobs, found.nodes, found.gpus, found.cpus) == (2, 2, 4, 2)
    asked = [dict(word.partition("=")[::2] for word in shlex.split(line)) for line in (tmp_path / "asked").open()]
    assert [line["--ntasks"] for line in asked] == ["2", "4"]
    assert {line["--gpus-per-task"] for line in asked} == {"2"}


def test_a_shape_that_slurm_never_starts_is_not_recommended(busy, tmp_path):
    busy.fails("sbatch")
    found = forecast(tmp_path, Queue("gpu"), {"jobs": 9, "gpus_per_node": 2}, grid={"x": list(range(99))})
    assert {(each.first_start_seconds, each.last_start_seconds) for each in found} == {(math.inf, math.inf)}
    assert not any(each.is_recommended for each in found)


@pytest.mark.parametrize(
    ("names", "gpus", "model", "found"),
    [
        ("gpu", 1, "", ["a100"]),
        ("gpu,fast", 1, "", ["a100", "h100"]),
        ("gpu,fast", 4, "", ["h100"]),
        ("fast", 2, "l40s", ["l40s"]),
        ("old,gpu", 1, "", []),  # some have no name
        ("gpu", 0, "", ["cpu"]),
    ],
)
def test_the_gpu_models_that_a_job_may_get_are_those_of_its_partitions(slurm, names, gpus, model, found):
    more = "fast|up|1:00|1|8|16000|gpu:h100:4,gpu:a100:1|(null)\nold|up|1:00|1|8|16000|gpu:2|(null)\n"
    slurm.prints("sinfo", PARTITIONS + more)
    assert list(Queue(names, model).gpu_models(gpus)) == found
    slurm.fails("sinfo")
    assert list(Queue(names).gpu_models(1)) == [], "unknown"


def test_idle_gpus_are_those_of_nodes_that_take_jobs_and_counted_once(slurm):
    slurm.prints("sinfo", PARTITIONS)
    twice = "n2  gpu:a100:2(S:0-1)  gpu:a100:0(IDX:N/A)"
    both = "n3  gpu:h100:4,gpu:a100:1  gpu:h100:4(IDX:0-3),gpu:a100:0"
    lines = ["n1  gpu:a100:2  gpu:a100:1(IDX:0)", twice, twice, both]
    slurm.prints("sinfo", "".join(f"{line}\n" for line in lines), of="--Node")
    partitions = Queue("gpu,other").partitions
    assert (count_idle_gpus(partitions), count_idle_gpus(partitions, "h100")) == (4, 0)
    slurm.fails("sinfo", of="--partition=gpu,other")
    assert count_idle_gpus(Queue("gpu").partitions) == 4
