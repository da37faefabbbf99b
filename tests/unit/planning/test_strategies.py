"""What a sweep costs as separate jobs, as an array and packed: against tables worked out by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from sweep_journals import killed_session, session_of, write_session
from trainyard.cluster.slurm_queries import JobRecord, parse_job_record, parse_timestamp
from trainyard.config.load import as_given, check_config, config_copy
from trainyard.planning.attempts import Fold, Session
from trainyard.planning.claims import ClaimLog, GivenUp
from trainyard.planning.journal import SessionStarted
from trainyard.planning.order import lower_bound, makespan
from trainyard.planning.plan import plan_sweep
from trainyard.planning.strategies import PADDING, estimate_others, make_strategy
from trainyard.planning.task import output_file
from trainyard.results.accounting import compare_strategies, jobs_table, strategies_table
from trainyard.utils.files import write_json

DEPTH = [0.2125 * blocks for blocks in range(4, 81, 4)]  # seconds of 20 ResNets of 4 to 80 blocks, as published
durations = st.lists(st.floats(0.1, 100), min_size=1, max_size=40)


def test_a_job_array_requests_more_than_the_longest_trial_needs_and_each_task_uses_its_own_time():
    """The published numbers, 340 s for 20 tasks of 17 s, are those of somebody who knows the longest trial."""
    _, row = estimate_others(DEPTH, units_per_trial=1, startup=0, basis="")
    requested = PADDING * 340
    assert (row.requested_seconds_per_job, row.jobs, row.requested_job_seconds) == (PADDING * 17, 20, requested)
    assert (row.units_per_job, row.units_total, row.requested_unit_seconds) == (1, 20, requested)
    assert row.running_unit_seconds == pytest.approx(178.5)
    assert row.used_unit_seconds == pytest.approx(178.5)
    assert row.wasted_unit_seconds == pytest.approx(0)
    assert row.makespan_seconds == row.makespan_lower_bound_seconds == 17


def test_the_published_numbers_of_a_packed_job_are_reproduced_and_what_it_really_needs():
    """They asked for 200 s on 4 GPUs."""
    row = make_strategy(
        "packed",
        [(200, 4)],
        DEPTH,
        used_unit_seconds=4 * 45.9,
        running_unit_seconds=178.5,
        units_total=4,
        slots=4,
        makespan=45.9,
        startup_unit_seconds=0,
        basis="",
    )
    assert (row.requested_job_seconds, row.units_per_job, row.units_total, row.requested_unit_seconds) == (
        200,
        4,
        4,
        800,
    )
    assert row.wasted_unit_seconds == pytest.approx(4 * 45.9 - 178.5)
    assert row.makespan_lower_bound_seconds == pytest.approx(44.625)
    assert makespan(sorted(DEPTH, reverse=True), 4) == pytest.approx(45.9)


def test_separate_jobs_waste_none_but_their_start():
    row, _ = estimate_others(DEPTH, units_per_trial=1, startup=3, basis="")
    assert row.running_unit_seconds == pytest.approx(178.5)
    assert row.requested_job_seconds == row.requested_unit_seconds == pytest.approx(PADDING * (178.5 + 60))
    assert row.requested_seconds_per_job == pytest.approx(PADDING * (8.925 + 3))
    assert row.wasted_unit_seconds == pytest.approx(row.startup_unit_seconds) == 60
    assert row.wasted_fraction == pytest.approx(60 / 238.5)


def test_tasks_of_an_array_ask_for_the_longest_trial_and_for_a_start():
    _, row = estimate_others(DEPTH, units_per_trial=1, startup=3, basis="")
    assert row.requested_seconds_per_job == PADDING * (17 + 3)
    assert row.wasted_unit_seconds == pytest.approx(60)
    assert row.makespan_seconds == 17, "without the start, as of a packed job"


def test_a_job_gets_whole_gpus_even_if_its_trial_needs_a_quarter():
    _, row = estimate_others([10, 20], units_per_trial=0.25, startup=0, basis="")
    assert (row.units_per_job, row.units_total, row.requested_unit_seconds) == (1, 2, PADDING * 40)
    assert row.running_unit_seconds == 7.5
    assert row.wasted_fraction == pytest.approx(1 - 7.5 / 30)


def test_no_packing_ends_before_the_bound():
    assert lower_bound([4, 1, 1], 2) == 4
    assert lower_bound([2, 2, 2], 2) == 4, "two of three equal trials run one after another"
    assert lower_bound([3, 3, 3, 3], 3) == 6
    assert lower_bound([1] * 10, 5) == 2
    assert lower_bound([1], 5) == 1


def test_no_trials_cost_nothing():
    _, row = estimate_others([], units_per_trial=1, startup=1, basis="")
    assert (row.jobs, row.requested_unit_seconds, row.wasted_fraction) == (0, 0, 0)


# ---- measured, from a journal

CONFIG = {
    "datasets": {"digits": {"source": "digits"}},
    "sweeps": {"depth": {"dataset": "digits", "grid": {"model_args.blocks": [1, 2, 3]}, "slots": {"gpus_per_node": 2}}},
}


def written(results, monkeypatch, *, walltime=None):
    """A journal of two jobs on two GPUs: the first is killed in its second trial, the next trains what is missing."""
    clock = {"now": 1000.0}
    for module in ("utils.event_log", "planning.journal"):
        monkeypatch.setattr(f"trainyard.{module}.read_clock", lambda: clock["now"])
    first, second, third = plan_sweep(check_config(CONFIG), "depth", results).state.trials

    def at(when, event, **fields):
        clock["now"] = 1000.0 + when
        journal.append(event, **fields)

    folder = results / "sweeps/depth"
    about = {"slots": 2, "nodes": 1, "gpus": 2, "gpus_per_trial": 1, "node": "n1", "walltime_seconds": walltime}
    with killed_session(folder, second) as journal:
        killed = journal.session
        at(0, "session", job="7", pending=3, predicted_seconds=None, **about)
        at(5, "slot_up", slot=0, import_torch_seconds=2.0, copy_seconds=1.0, data_seconds=0.5)
        at(5, "started", trial=third, attempt=1, slot=0)
        at(6, "started", trial=second, attempt=1, slot=1)
        at(35, "finished", trial=third, attempt=1, seconds=30.0, metrics={})
    with session_of(folder) as journal:
        log = ClaimLog(folder)
        log.read()
        given_up = GivenUp(is_gone=True, ends={second: 1036.0})  # with its last output
        assert log.append(journal.session, given_up={killed: given_up})
        at(101, "session", job="9", pending=2, predicted_seconds=20.0, **about)
        at(103, "started", trial=second, attempt=2, slot=0, expected_seconds=20.0)
        at(103, "started", trial=first, attempt=1, slot=1, expected_seconds=10.0)
        at(113, "finished", trial=first, attempt=1, seconds=10.0, metrics={})
        at(125, "finished", trial=second, attempt=2, seconds=22.0, metrics={})
    runs = Fold(folder).update().sessions
    return plan_sweep(check_config(CONFIG), "depth", results).state, runs


def test_what_was_packed_is_measured_from_the_journal(tmp_path, monkeypatch):
    state, runs = written(tmp_path, monkeypatch)
    table = strategies_table(compare_strategies(state, runs, {})).set_index("strategy")
    packed, array = table.loc["packed"], table.loc["job_array"]
    assert packed["jobs"] == 2
    assert packed["requested_job_seconds"] == 36 + 24, "no walltime was requested: the elapsed time of each"
    assert packed["requested_gpu_seconds"] == 120
    assert packed["running_gpu_seconds"] == array["running_gpu_seconds"] == 62
    assert packed["wasted_fraction"] == pytest.approx(58 / 120)
    assert packed["makespan_seconds"] == 31 + 22
    assert packed["makespan_lower_bound_seconds"] == 32, "of 30, 22 and 10 s on two slots"
    assert packed["startup_gpu_seconds"] == 2 * (5 + 2)
    assert packed["basis"] == "measured: journal; no walltime was requested: elapsed time"
    assert array["startup_gpu_seconds"] == 3 * 3.5, "what a slot took to come up, once per trial"
    assert array["requested_job_seconds"] == PADDING * (90 + 3 * 3.5)
    assert array["used_gpu_seconds"] == 62 + 3 * 3.5
    for _, row in table.iterrows():
        assert row["wasted_gpu_seconds"] == pytest.approx(row["used_gpu_seconds"] - row["running_gpu_seconds"])
        assert row["wasted_gpu_seconds"] >= row["startup_gpu_seconds"] > 0, "of each strategy, the start is wasted"
    words = "computed from the measured durations of the trials; requests 1.5 times the walltime that they need"
    assert array["basis"] == words


def test_a_sweep_without_gpus_is_charged_for_its_cpus(tmp_path):
    """Two trials of three CPUs run for 10 s each, side by side; they start 4 s after their job."""
    slots = {"cpus": 6, "cpus_per_trial": 3}
    config = check_config({"sweeps": {"t": {"function": "os:getcwd", "grid": {"x": [1, 2]}, "slots": slots}}})
    about = {"slots": 2, "nodes": 1, "gpus": 0, "cpus": 6, "gpus_per_trial": 0.0}
    lines = [{"event": "session", "time": 0.0, "pending": 2, **about}]
    for trial in plan_sweep(config, "t", tmp_path).state.trials:
        lines.append({"event": "started", "trial": trial, "attempt": 1, "time": 4.0, "gpus_per_trial": 0.0})
        lines.append({"event": "finished", "trial": trial, "attempt": 1, "time": 14.0, "seconds": 10.0})
    write_session(tmp_path / "sweeps/t", lines)
    state, runs = plan_sweep(config, "t", tmp_path).state, Fold(tmp_path / "sweeps/t").update().sessions
    table = strategies_table(compare_strategies(state, runs, {}), "CPU").set_index("strategy")
    packed, array = table.loc["packed"], table.loc["job_array"]
    assert not table[[name for name in table if "gpu" in name]].any(axis=None), "no GPU is claimed"
    assert list(table)[-7:] == ["cpus_per_job", "cpus_total", "requested_cpu_seconds", "running_cpu_seconds",
                                "wasted_cpu_seconds", "startup_cpu_seconds", "used_cpu_seconds"]  # fmt: skip
    assert (packed["cpus_per_job"], packed["requested_cpu_seconds"], packed["running_cpu_seconds"]) == (6, 84, 60)
    assert packed["wasted_fraction"] == pytest.approx(24 / 84)
    assert (packed["startup_cpu_seconds"], packed["wasted_cpu_seconds"]) == (24, 24)
    assert (array["cpus_per_job"], array["cpus_total"], array["running_cpu_seconds"]) == (3, 6, 60)
    (job,) = jobs_table(state, runs, {}).to_dict("records")
    assert (job["gpus"], job["running_gpu_seconds"], job["cpus"]) == (0, 0, 6)
    parts = [job[f"{kind}_cpu_seconds"] for kind in ("running", "failed", "startup", "idle")]
    assert parts == [60, 0, 24, 0]


def test_the_accounting_says_what_was_asked_and_what_it_took(tmp_path, monkeypatch):
    state, runs = written(tmp_path, monkeypatch, walltime=60)
    records = {"9": JobRecord(120.0, 31.0, "cpu=2,gres/gpu=2", 0.0)}
    packed = strategies_table(compare_strategies(state, runs, records)).set_index("strategy").loc["packed"]
    assert packed["requested_job_seconds"] == 60 + 120
    assert packed["requested_seconds_per_job"] == 90
    assert packed["basis"] == "measured: journal and sacct"
    assert packed["used_gpu_seconds"] == 2 * (36 + 31), "it costs what it used, not what it requested"
    assert packed["wasted_fraction"] == pytest.approx(1 - packed["running_gpu_seconds"] / (2 * (36 + 31)))
    first, second = jobs_table(state, runs, records).to_dict("records")
    assert (first["job"], first["finished"], first["pending"]) == ("7", 1, 3)
    assert math.isnan(first["gap"]), "it did not get to do all that was predicted"
    assert (first["requested_seconds"], first["elapsed_seconds"], first["used_fraction"]) == (60, 36, 0.6)
    assert first["failed_gpu_seconds"] == 30, "the attempt that was cut off"
    assert [first[kind] for kind in ("stopped", "failed", "interrupted")] == [0, 0, 1]
    assert second["gap"] == pytest.approx(22 / 20 - 1)
    assert (second["elapsed_seconds"], second["allocated_tres"]) == (31, "cpu=2,gres/gpu=2")
    assert second["idle_gpu_seconds"] == (31 - 2) * 2 - 32


def test_the_accounting_of_a_requeued_job_is_that_of_its_last_run(tmp_path, monkeypatch):
    state, runs = written(tmp_path, monkeypatch, walltime=60)
    runs = [replace(run, info=replace(run.info, job="7")) for run in runs]
    records = {"7": JobRecord(120.0, 31.0, "cpu=2,gres/gpu=2", 0.0)}
    first, second = jobs_table(state, runs, records).to_dict("records")
    assert (first["elapsed_seconds"], first["used_fraction"], first["allocated_tres"]) == (36, 0.6, "")
    assert (second["elapsed_seconds"], second["requested_seconds"]) == (31, 120)
    for row in (first, second):
        parts = [row[f"{kind}_gpu_seconds"] for kind in ("running", "failed", "startup", "idle")]
        assert sum(parts) == row["elapsed_seconds"] * row["gpus"]
    assert compare_strategies(state, runs, records)[-1].requested_job_seconds == 60 + 120


def test_the_accounting_of_a_run_without_a_journal_is_not_that_of_the_run_before(tmp_path, monkeypatch):
    """A job that is requeued after others have run all trials ends before it writes one."""
    state, runs = written(tmp_path, monkeypatch, walltime=60)
    record = JobRecord(60.0, 17.0, "cpu=2,gres/gpu=2", 0.0)
    row = jobs_table(state, runs, {runs[1].info.job: record}).to_dict("records")[1]
    assert row["elapsed_seconds"] == runs[1].end - runs[1].start > 17
    assert row["basis"] == "measured: journal"


def test_a_job_that_started_no_trial_is_wasted_as_a_whole(tmp_path, monkeypatch):
    state, runs = written(tmp_path, monkeypatch, walltime=60)
    early = replace(runs[0].info, job="6", time=900.0)
    without = [replace(runs[0], info=early, first_start=None, last_end=0.0, end=920.0, attempts=[], slot_startups=[])]
    packed = compare_strategies(state, without + runs, {})[-1]
    assert (packed.jobs, packed.requested_job_seconds) == (3, 3 * 60)
    before = compare_strategies(state, runs, {})[-1]
    assert packed.wasted_unit_seconds == before.wasted_unit_seconds + 2 * 20
    assert packed.makespan_seconds == before.makespan_seconds
    assert jobs_table(state, without + runs, {})["counted"].all()
    nothing_to_do = replace(without[0], info=replace(early, pending=0))  # wrote tables
    assert compare_strategies(state, [nothing_to_do, *runs], {})[-1] == before
    last = replace(without[0], info=replace(early, time=1200.0), end=1220.0)
    assert compare_strategies(state, [*runs, last], {})[-1].used_unit_seconds == before.used_unit_seconds + 2 * 20


@pytest.mark.parametrize(
    ("changes", "is_counted"),
    [
        ({}, True),
        ({"slots": {"gpus_per_node": 4}}, True),
        ({"grid": {"model_args.blocks": [3, 4]}}, True),
        ({"grid": {"model_args.blocks": [8]}}, False),
        ({"retrain": 0}, False),
    ],
)
def test_a_job_that_started_no_trial_counts_by_its_own_config(tmp_path, monkeypatch, changes, is_counted):
    """The config of now has `retrain: 1`."""
    written(tmp_path, monkeypatch)
    sweep = {**CONFIG["sweeps"]["depth"], "retrain": 1}
    own = check_config({**CONFIG, "sweeps": {"depth": sweep | changes}})
    copy = config_copy(own, tmp_path)
    write_json(copy, as_given(own))
    about = SessionStarted(time=1200.0, job="9", slots=2, gpus=2, pending=3, config=copy.stem)
    state = plan_sweep(check_config({**CONFIG, "sweeps": {"depth": sweep}}), "depth", tmp_path).state
    (row,) = jobs_table(state, [Session(about, "0-9", end=1220.0)], {}).to_dict("records")
    assert row["counted"] is is_counted


def test_a_job_of_which_no_trial_has_ended_yet_has_no_measured_makespan(tmp_path, monkeypatch):
    state, runs = written(tmp_path, monkeypatch)
    runs[1].last_end = 0.0
    assert jobs_table(state, runs, {})["measured_seconds"].isna().tolist() == [False, True]


def test_every_attempt_of_a_job_is_counted_once(tmp_path):
    kinds = ["finished", "stopped", "diverged", "failed", "interrupted", "unreadable"]
    stop = {"method": "asha", "epochs": 9}
    own = {"function": "os:getcwd", "grid": {"x": [1, 2, 3, 4, 5, 6]}, "stop": stop, "metric": "m", "mode": "min"}
    config = check_config({"sweeps": {"s": own}})
    lines = [{"event": "session", "time": 0.0, "slots": 6, "gpus": 6}]
    for number, (trial, kind) in enumerate(zip(plan_sweep(config, "s", tmp_path).state.trials, kinds, strict=True)):
        lines.append({"event": "started", "trial": trial, "attempt": 1, "time": 1.0})
        lines.append({"event": kind, "trial": trial, "attempt": 1, "time": 2.0 + number, "seconds": 1.0 + number})
    write_session(tmp_path / "sweeps/s", lines)
    state, runs = plan_sweep(config, "s", tmp_path).state, Fold(tmp_path / "sweeps/s").update().sessions
    output = output_file(state.folder, state.attempts[list(state.trials)[-1]][-1])
    output.parent.mkdir(parents=True)
    output.touch()
    row = jobs_table(state, runs, {}).iloc[0]
    assert row[kinds[:-1]].tolist() == [1, 1, 1, 2, 1], "what is unreadable has failed, until it can be read"
    assert row["running_gpu_seconds"] == 1 + 2 + 3, "also of one that diverged: no other attempt will be made"
    assert row["failed_gpu_seconds"] == 4 + 5 + 6
    assert [each.running_unit_seconds for each in compare_strategies(state, runs, {})] == [1 + 2 + 3] * 3


def test_what_has_been_trained_anew_since_is_not_counted(tmp_path, monkeypatch):
    _, runs = written(tmp_path, monkeypatch)
    again = {**CONFIG, "sweeps": {"depth": {**CONFIG["sweeps"]["depth"], "retrain": 1}}}
    state = plan_sweep(check_config(again), "depth", tmp_path).state
    table = strategies_table(compare_strategies(state, runs, {})).set_index("strategy")
    assert table["jobs"].tolist() == [0, 0, 0]


def test_a_line_of_the_accounting_is_read():
    assert parse_job_record("12|5|61|billing=4,gres/gpu=2,node=1|2026-11-21T00:00:10") == (
        "12",
        JobRecord(300.0, 61.0, "billing=4,gres/gpu=2,node=1", parse_timestamp("2026-11-21T00:00:10")),
    )
    assert parse_job_record("12|UNLIMITED|61||2026-11-21T00:00:10")[1].requested_seconds is None
