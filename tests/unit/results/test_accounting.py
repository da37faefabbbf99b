"""The accounting of a sweep whose jobs ran at the same time; of jobs one after another, see test_strategies.py."""

import json

import pytest
from trainyard.cluster.slurm_queries import JobRecord
from trainyard.config.load import check_config
from trainyard.planning.plan import plan_sweep
from trainyard.results.accounting import compare_strategies, jobs_table, strategies_table

SLOTS = {"gpus_per_node": 2, "jobs": 3}
CONFIG = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"x": [1, 2, 3, 4, 5]}, "slots": SLOTS}}})


def write_job(results, order_job, start, *, attempts=(), end=None, **about):
    """The journal of a job: attempts are (trial, attempt, slot, start, end, event)."""
    session = {"slots": 2, "nodes": 1, "gpus": 2, "gpus_per_trial": 1, "node": "n1", "job": str(start)}
    lines = [{"event": "session", "time": start, **session, **about}]
    for trial, number, slot, begin, stop, event in attempts:
        of_trial = {"trial": trial, "attempt": number}
        lines.append({"event": "started", "time": begin, "slot": slot, "node": "n1", **of_trial})
        lines.append({"event": event, "time": stop, "seconds": stop - begin, "metrics": {}, **of_trial})
    lines.append({"event": "left", "time": end or max(line["time"] for line in lines)})
    path = results / f"sweeps/s/sessions/{order_job}-local.0-{start}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: line["time"])))


@pytest.fixture
def state(tmp_path):
    """Two jobs begin together, one of which is interrupted; a third one begins late, and a fourth finds no trial."""
    one, two, three, four, five = plan_sweep(CONFIG, "s", tmp_path).state.trials
    first = [(one, 1, 0, 1005.0, 1014.0, "finished"), (two, 1, 1, 1005.0, 1015.0, "interrupted")]
    second = [(three, 1, 2, 1006.0, 1016.0, "finished"), (four, 1, 3, 1006.0, 1026.0, "finished"),
              (two, 2, 2, 1016.0, 1031.0, "finished")]  # fmt: skip
    third = [(five, 1, 4, 1018.0, 1028.0, "finished")]
    write_job(tmp_path, 0, 1000, attempts=first, pending=5, predicted_seconds=20.0)
    write_job(tmp_path, 1, 1001, attempts=second, pending=5, predicted_seconds=20.0)
    write_job(tmp_path, 2, 1012, attempts=third, pending=5, predicted_seconds=10.0)
    write_job(tmp_path, 0, 1021, end=1025, pending=3, predicted_seconds=8.0)
    return plan_sweep(CONFIG, "s", tmp_path).state


def test_jobs_at_the_same_time_have_what_they_requested_together(state):
    table = strategies_table(compare_strategies(state, state.sessions, {})).set_index("strategy")
    packed = table.loc["packed"]
    assert packed["jobs"] == 4
    assert packed["requested_job_seconds"] == 15 + 30 + 16 + 4
    assert (packed["gpus_total"], packed["slots"]) == (6, 6), "the fourth job began after the first had ended"
    assert packed["running_gpu_seconds"] == 9 + 10 + 20 + 15 + 10
    assert packed["makespan_seconds"] == 1031 - 1005, "from the first trial's start to the last one's end"
    assert packed["makespan_lower_bound_seconds"] == 20
    assert packed["startup_gpu_seconds"] == 2 * (5 + 5 + 6 + 4)


def test_a_job_is_compared_with_the_prediction_of_the_whole_sweep(state):
    table = jobs_table(state, state.sessions, {}).set_index("session")
    assert list(table.index) == ["0-local.0-1000", "1-local.0-1001", "2-local.0-1012", "0-local.0-1021"]
    assert table["order_job"].tolist() == [0, 1, 2, 0]
    assert table["finished"].tolist() == [1, 3, 1, 0]
    assert table["measured_seconds"].tolist()[:3] == [31 - 5, 31 - 6, 31 - 18]
    assert table["gap"].tolist()[:3] == pytest.approx([26 / 20 - 1, 25 / 20 - 1, 13 / 10 - 1])
    assert table["gap"].isna().tolist()[3:] == [True], "it started no trial"


def test_a_job_that_found_no_trial_beside_others_is_wasted_as_a_whole(state):
    last = jobs_table(state, state.sessions, {}).iloc[-1]
    assert last["counted"]
    assert (last["startup_gpu_seconds"], last["idle_gpu_seconds"]) == (2 * 4, 0)


def test_a_prediction_is_not_compared_before_all_trials_have_ended(tmp_path):
    one, two, *_ = plan_sweep(CONFIG, "s", tmp_path).state.trials
    for number, trial in enumerate((one, two)):
        attempts = [(trial, 1, 2 * number, 1005.0, 1010.0, "finished")]
        write_job(tmp_path, number, 1000 + number, attempts=attempts, pending=5, predicted_seconds=20.0)
    state = plan_sweep(CONFIG, "s", tmp_path).state
    assert jobs_table(state, state.sessions, {})["gap"].isna().all()


def test_a_job_in_slurm_waited_from_its_submission_to_its_start(tmp_path):
    """Jobs started 4 s before their drivers. The last one is none of Slurm's."""
    for start, lead in ((1000, 4.0), (1010, 4.0), (1300, None)):
        write_job(tmp_path, 0, start, end=start + 5, lead_seconds=lead, pending=1)
    state = plan_sweep(CONFIG, "s", tmp_path).state
    records = {
        state.sessions[0].info.job: JobRecord(60.0, 9.0, "", 900.0),
        state.sessions[1].info.job: JobRecord(60.0, 9.0, "", 910.0),
    }
    table = jobs_table(state, state.sessions, records)[["submitted", "wait_seconds"]]
    rows = table.astype(object).where(table.notna(), None).to_numpy().tolist()
    assert rows == [[900, 96], [910, 96], [None, None]]
