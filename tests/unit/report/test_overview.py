"""The report's first page says what was best, what it cost and wasted, what failed, and what to do next."""

import base64
import json

import pytest
from sweep_journals import write_session
from trainyard.config.load import check_config
from trainyard.planning.history import read_state
from trainyard.report.overview import summarize_studies
from trainyard.report.study_tables import write_tables
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import write_best
from trainyard.results.ranking import rank_sweep
from trainyard.results.sweep_tables import write_sweep_tables
from trainyard.utils.csv_files import read_table, write_table
from written_results import DIVERGED, FAILED, GRID, finished, write_results, write_scaling_results


def test_the_summary_of_a_sweep_says_what_was_best_and_what_to_do_next(tmp_path):
    ends = [finished(3.0), FAILED, DIVERGED, finished(2.0)]
    config = write_results(tmp_path, GRID, ends, device="NVIDIA H200", gpu_hour=3.6)
    (summary,) = summarize_studies(config, tmp_path)
    assert "best rmse (lowest): 2" in summary.answer
    assert "lr = 4" in summary.answer
    assert summary.facts["ran"].startswith("4 trials: 2 finished, 1 diverged, 1 failed; 1 job, 50 s, from 2027-01-15")
    assert summary.facts["ran"].endswith("on node n1, NVIDIA H200")
    assert summary.cost == "0.0278 GPU-hours used, 0.10 at 3.6 per GPU-hour"
    assert summary.facts["wasted"].startswith("72% of what was used (20% to start programs)")
    assert summary.facts["duration"].startswith("40 s from the first trial's start to the last one's end; on 2 slots")
    assert summary.facts["predicted"] == "2 trials took 25% more than predicted"
    assert any("RuntimeError: <b>bad</b>; see results/sweeps/s/logs/x.txt" in line for line in summary.failures)
    assert any(line.startswith("1 trial diverged, as ") for line in summary.failures)
    assert summary.facts["failed"] == "1 of 4 attempts"
    again = f"run the same command with `--forcerun {tmp_path}/sweeps/s/trials.csv`: only what is missing runs."
    assert summary.next_steps[0] == f"Correct the error of 1 failed trial and {again}", "its tables are complete"


def test_the_report_says_that_a_script_sent_all_trials_to_one_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os, sys\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nlr = sys.argv[1]\n")
    own = {"command": "python train.py {lr}", "grid": {"lr": [0.1, 0.2]}, "slots": {"gpus_per_node": 2}}
    (summary,) = summarize_studies(check_config({"sweeps": {"own": own}}), tmp_path / "results")
    assert summary.more[-1].startswith("warning: train.py, line 2: CUDA_VISIBLE_DEVICES is overwritten with '0'")


def test_failures_of_trials_that_are_no_longer_in_the_config_do_not_count(tmp_path):
    write_results(tmp_path, GRID, [FAILED, finished(3.0), FAILED])
    path = tmp_path / "sweeps/s/trials.csv"
    trials = read_table(path)
    write_table(trials[trials["lr"] != 1], path)
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", **GRID, "grid": {"lr": [2, 3, 4]}}}})
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.facts["failed"] == "1 of 2 attempts"


def test_a_prediction_is_that_of_a_whole_trial_also_if_it_resumed(tmp_path):
    """Its second attempt takes 2 s, and begins where the first one saved its state after 6 s."""
    config = check_config({"sweeps": {"s": {"command": "train", "checkpoint": "*.pt", "metric": "rmse"}}})
    folder = tmp_path / "sweeps/s"
    folder.mkdir(parents=True)
    (name,) = read_state(config.sweeps["s"], "s", tmp_path).trials
    saved = {"checkpoint": {"name": "a.pt", "modified_ns": 107 * 10**9, "size": 1}}
    events = [("session", 100, {"slots": 1, "gpus": 1, "nodes": 1, "job": "local", "pending": 1}),
              ("started", 101, {"attempt": 1, "expected_seconds": 8.0}), ("interrupted", 108, {"attempt": 1}),
              ("session", 200, {"slots": 1, "gpus": 1, "nodes": 1, "job": "local", "pending": 1}),
              ("started", 201, {"attempt": 2, "expected_seconds": 8.0}), ("resumed", 201, {"attempt": 2, **saved}),
              ("finished", 203, {"attempt": 2, "seconds": 2.0, "metrics": {"rmse": 1.0}})]  # fmt: skip
    lines = [{"event": event, "time": float(time), "trial": name, **fields} for event, time, fields in events]
    write_session(folder, lines[:3])
    write_session(folder, lines[3:], number=1)
    state = read_state(config.sweeps["s"], "s", tmp_path)
    write_sweep_tables(state, rank_sweep(state), folder)
    write_tables(config, "sweeps", "s", tmp_path)
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.facts["predicted"] == "1 trial took 0% more than predicted"


@pytest.mark.parametrize(
    ("nodes", "where"), [(["n3", "n2"], "2 nodes"), (["n2", "n2"], "node n2"), (["n1,n2", "n3,n4"], "4 nodes")]
)
def test_a_sweep_that_went_on_elsewhere_names_no_single_node(tmp_path, nodes, where):
    config = write_results(tmp_path, GRID, [finished(3.0), finished(2.0)])
    path = tmp_path / "sweeps/s/timeline.csv"
    write_table(read_table(path).assign(node=nodes), path)
    (summary,) = summarize_studies(config, tmp_path)
    assert f", on {where}, " in summary.facts["ran"]


@pytest.mark.parametrize("table", [["1x1"], ["1x1", "1x2"]], ids=["a new scale", "a scale that is trained again"])
def test_a_study_that_is_extended_or_trained_again_has_a_page_of_what_is_known(tmp_path, table):
    config = write_scaling_results(tmp_path, {"1x1": [9.0], "1x2": [8.0]}, device="cpu", cost=None)
    path = tmp_path / "scaling/wide/scaling.csv"
    write_table(read_table(path).head(len(table)), path)
    (tmp_path / "scaling/wide/1x2/summary.json").unlink()
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.rows[0] == ["scale", "1x1"]
    assert summary.facts["ran"].startswith("1 scale, weak scaling, 9 s of training")
    assert summary.facts["code"] == "commit-1x1"
    assert summary.facts["so far"] == "1 of 2 scales trained: 1x1"
    (tmp_path / "scaling/wide/1x1/summary.json").write_text(json.dumps({"spec_digest": "of another config"}))
    (summary,) = summarize_studies(config, tmp_path)
    assert (summary.answer, summary.facts["so far"]) == ("no result yet", "0 of 2 scales trained")


def test_a_trial_that_was_interrupted_has_no_reason(tmp_path):
    config = write_results(tmp_path, GRID, [finished(3.0), ("interrupted", {})])
    (summary,) = summarize_studies(config, tmp_path)
    _, name, *_ = read_state(config.sweeps["s"], "s", tmp_path).trials
    assert summary.failures == [f"1 trial interrupted, as {name}"]


def test_a_trial_that_runs_is_no_failure(tmp_path):
    config = write_results(tmp_path, GRID, [finished(3.0), ("epoch", {"metrics": {"epoch": 1, "rmse": 2.0}})])
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.facts["ran"].startswith("4 trials: 1 finished, 1 running, 2 pending")
    assert not summary.failures


def test_errors_that_differ_only_in_the_values_of_their_trials_are_one_reason(tmp_path):
    ends = [("failed", {"error": f"ValueError: lr {lr} is too large"}) for lr in (1, 2, 3)]
    config = write_results(tmp_path, GRID, [("failed", {"error": "KeyError: 'x'"}), *ends[1:], DIVERGED])
    (summary,) = summarize_studies(config, tmp_path)
    _, name, *_ = read_state(config.sweeps["s"], "s", tmp_path).trials
    assert summary.failures[0] == f"2 trials failed, as {name}: ValueError: lr 2 is too large"
    assert len(summary.failures) == 3


def test_a_best_value_at_the_end_of_its_range_is_to_be_exceeded(tmp_path):
    config = write_results(tmp_path, GRID, [finished(value) for value in (5.0, 4.0, 3.0, 2.0)])
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.next_steps[:-1] == ["The best lr, 4, is the largest that was tried: try larger ones."]


def test_a_median_of_predictions_is_that_of_ten_trials_at_least(tmp_path):
    grid = {**GRID, "grid": {"lr": list(range(10))}}
    config = write_results(tmp_path, grid, [finished(float(value)) for value in range(10)])
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.facts["predicted"].endswith("; half of 10 trials took within 25% of the predicted time")


def test_a_best_value_within_its_range_asks_for_more_seeds_only(tmp_path):
    config = write_results(tmp_path, {**GRID, "args": {"seed": 0}}, [finished(value) for value in (5.0, 1.0, 3.0, 2.0)])
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.more[0].endswith("; with one run each, chance may have decided")
    assert summary.next_steps == [
        "To decide between the first 4: run 3 new seeds of each, the same for all (`repeats: 4` and "
        "`repeat_best: 4`), which is 12 trials, 1.9 slot-minutes.",
        f"Train the best configuration again: {tmp_path}/sweeps/s/best.yaml says how.",
    ]


def test_equal_values_at_both_ends_of_a_range_are_no_reason_to_extend_it(tmp_path):
    config = write_results(tmp_path, GRID, [finished(value) for value in (1.0, 2.0, 1.0, 1.0)])
    (summary,) = summarize_studies(config, tmp_path)
    assert list(summary.more) == ["equal to it: lr = 3 | lr = 4"]
    assert not any("try " in step for step in summary.next_steps)


def test_a_key_that_the_best_trials_do_not_all_have_is_in_no_advice(tmp_path):
    trials = [{"lr": 1}, *({"lr": 1, "momentum": value} for value in (0.7, 0.8, 0.9))]
    config = write_results(
        tmp_path, {**GRID, "grid": {}, "trials": trials}, [finished(v) for v in (1.0, 3.0, 2.0, 1.0)]
    )
    (summary,) = summarize_studies(config, tmp_path)
    assert list(summary.more) == ["equal to it: momentum = 0.9"]
    assert not any("momentum" in step for step in summary.next_steps)


@pytest.mark.parametrize(("count", "is_close"), [(4, False), (60, True)])
def test_the_end_of_what_was_drawn_is_not_the_end_of_the_range(tmp_path, count, is_close):
    sweep = {**GRID, "grid": {}, "sample": {"count": count, "values": {"lr": {"low": 0, "high": 1}}}}
    drawn = read_state(write_results(tmp_path / "a", sweep, []).sweeps["s"], "s", tmp_path).trials.values()
    values = [trial.values["lr"] for trial in drawn]
    assert (max(values) >= 0.95) == is_close
    config = write_results(tmp_path / "b", sweep, [finished(-value) for value in values])
    (summary,) = summarize_studies(config, tmp_path / "b")
    line = f"The best lr, {max(values):g}, is close to 1, the largest of its range: try larger ones."
    assert [step for step in summary.next_steps if "try " in step] == [line] * is_close


def test_a_best_value_outside_the_range_of_a_search_is_at_no_end_of_it(tmp_path):
    search = {"values": {"wd": {"low": 1e-4, "high": 0.1, "log": True}}, "trials": 3}
    sweep = {**GRID, "grid": {"wd": [0.0, 0.01, 0.1]}, "search": search}
    config = write_results(tmp_path, sweep, [finished(value) for value in (1.0, 2.0, 3.0)])
    (summary,) = summarize_studies(config, tmp_path)
    assert "wd = 0" in summary.answer
    assert not any("try " in step for step in summary.next_steps)


def test_if_all_configurations_are_incomplete_none_is_at_an_end_of_the_range(tmp_path):
    sweep = {**GRID, "grid": {"lr": [1, 2, 3], "seed": [0, 1]}}
    (summary,) = summarize_studies(write_results(tmp_path, sweep, [finished(1.0), DIVERGED] * 3), tmp_path)
    assert "lr = 1" in summary.answer
    assert not any("try " in step for step in summary.next_steps)


def test_a_search_without_any_trial_yet_has_a_page(tmp_path):
    search = {"values": {"lr": {"low": 0, "high": 1}}, "trials": 3}
    config = write_results(tmp_path, {**GRID, "grid": {}, "search": search}, [])
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.facts == {"ran": "nothing yet"}
    assert read_table(tmp_path / "sweeps/s/ranking.csv").empty


def test_values_that_are_no_numbers_have_no_range(tmp_path):
    trials = [{"layers": [64, 64], "options": {"a": 1}}, {"layers": [32], "options": None}, {"layers": 8}]
    config = write_results(tmp_path, {**GRID, "grid": {}, "trials": trials}, [finished(1.0)] * 3)
    (summary,) = summarize_studies(config, tmp_path)
    assert "layers = [64, 64]" in summary.answer
    assert not any("try " in step for step in summary.next_steps)


@pytest.mark.parametrize("end", [FAILED, DIVERGED])
def test_values_that_were_tried_in_vain_are_not_advised(tmp_path, end):
    config = write_results(tmp_path, GRID, [finished(value) for value in (5.0, 4.0, 3.0)] + [end], slots=1)
    (summary,) = summarize_studies(config, tmp_path)
    assert "lr = 3" in summary.answer
    assert not any("try larger" in step for step in summary.next_steps), "4 was tried"
    assert "; on 1 slot, these trials take at least " in summary.facts["duration"]


def test_a_scaling_study_of_which_not_all_is_known_has_empty_cells(tmp_path):
    config = write_scaling_results(
        tmp_path, {"1x1": [9.0], "1x2": [9.0]}, device="cpu", cost=None, images_per_second=[None, 5.0]
    )
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.rows == [
        ["scale", "1x1", "1x2"],
        ["train (s)", "9", "9"],
        ["images per second", "", "5"],
        ["speedup", "1", "1"],
        ["efficiency", "1", "1"],
    ]


def test_all_repeats_of_a_scaling_study_have_their_cost(tmp_path):
    known = {"device": "NVIDIA H200", "cost": 2.0, "gpu_hours": 1.0, "efficiency": None}
    config = write_scaling_results(tmp_path, {"1x1": [10.0, 20.0, 60.0]}, **known)
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.cost == "4.5 GPU-hours, 9.00", "the table has those of the median, 20 s"
    assert summary.facts["ran"].startswith("1 scale, weak scaling, 1 min 30 s of training, until ")
    assert "1970" not in summary.facts["ran"], "the last repeat ended later than the first"


def test_cpu_time_is_not_presented_as_gpu_time(tmp_path):
    config = write_results(tmp_path, GRID, [finished(value) for value in (5.0, 1.0, 3.0, 2.0)], gpu_hour=2.5)
    (summary,) = summarize_studies(config, tmp_path)
    assert summary.cost == "1 min 40 s of slots on CPUs used, no GPU time"
    assert summary.facts["failed"].startswith("none of ")


def test_a_job_on_gpus_that_started_no_trial_is_not_said_to_have_run_on_cpus(tmp_path):
    results, later = write_results(tmp_path, GRID, [FAILED], device="NVIDIA H200"), tmp_path / "sweeps/s/timeline.csv"
    write_table(read_table(later).head(0), later)
    (summary,) = summarize_studies(results, tmp_path)
    assert "GPU-hours" in summary.cost


def test_trials_of_different_versions_of_the_code_are_reported(tmp_path):
    sweep = {"function": "os:getcwd", "grid": {"lr": [1, 2, 3]}, "metric": "rmse"}
    config, folder = check_config({"sweeps": {"s": sweep}}), tmp_path / "sweeps/s"
    folder.mkdir(parents=True)
    names = list(read_state(config.sweeps["s"], "s", tmp_path).trials)
    runs = [("1a2b3c", names[:1]), ("1a2b3c-dirty", names[1:2]), (None, names[2:])]
    facts = []
    for number, (code, trials) in enumerate(runs):
        session = {"slots": 1, "gpus": 1, "nodes": 1, "job": "local", "pending": 1, **({"code": code} if code else {})}
        lines = [{"event": "session", "time": 100.0 * number, **session}]
        for trial in trials:
            end = {"seconds": 1.0, "metrics": {"rmse": 3.0 - number}}
            lines += [{"event": event, "time": 100.0 * number + 1, "trial": trial, "attempt": 1, **fields}
                      for event, fields in (("started", {"slot": 0}), ("finished", end))]  # fmt: skip
        write_session(folder, lines, number=number)
        state = read_state(config.sweeps["s"], "s", tmp_path)
        write_sweep_tables(state, rank_sweep(state), folder)
        write_tables(config, "sweeps", "s", tmp_path)
        (summary,) = summarize_studies(config, tmp_path)
        facts.append(summary.facts["code"])
    both = "1a2b3c (1 trial), 1a2b3c with uncommitted changes (1 trial)"
    assert facts == [
        "1a2b3c",
        f"trials ran with different versions: {both}",
        f"trials ran with different versions: {both}, an unknown commit (1 trial)",
    ]
    best = write_best(config, state, answer_sweep(state)).read_text()
    assert "# It ran with" not in best, "that of the best is unknown"
    assert f"# {facts[-1]}\n" in best


def test_the_picture_of_several_objectives_is_their_front(tmp_path):
    """The pictures are made by another rule, which has run before."""
    sweep = {"grid": {"lr": [1, 2, 3, 4]}, "objectives": {"rmse": "min", "seconds": "min"}}
    config = write_results(tmp_path, sweep, [finished(3.0), finished(2.0)])
    for name in ("metric", "front"):
        (path := tmp_path / f"plots/sweeps/s/{name}.png").parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (summary,) = summarize_studies(config, tmp_path)
    assert next(iter(summary.pictures.values())).endswith(base64.b64encode(b"front").decode())
    assert summary.answer.startswith(
        "Pareto front of rmse (lowest) and seconds (lowest): 1 of 2 configurations; best.y"
    )
    assert summary.more[0].startswith("1. rmse = 2, seconds = 9.5: trial ")
