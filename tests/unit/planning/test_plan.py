"""The plan: what is pending, in what order, and what a schedule of trials comes to."""

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_journals import record_attempt, record_draws, session_of
from trainyard.cluster.slurm_queries import max_walltime_minutes, parse_partition
from trainyard.config.load import ConfigError, check_config
from trainyard.planning.attempts import Session
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.job_costs import describe_limits, planned_alternatives, summarize_cost, summarize_plan
from trainyard.planning.journal import SessionStarted, Suggested
from trainyard.planning.order import jobs_needed, lower_bound, makespan
from trainyard.planning.plan import plan_sweep
from trainyard.planning.strategies import PADDING

durations = st.lists(st.floats(0.1, 100), min_size=1, max_size=40)
slots = st.integers(1, 12)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_longest_first_keeps_grahams_bound(seconds, count):
    """At most 4/3 - 1/(3G) times the optimum (Graham 1969), here found by trying every assignment."""
    assignments = itertools.product(range(count), repeat=len(seconds))
    loads = (
        [sum(s for s, slot in zip(seconds, chosen, strict=True) if slot == g) for g in range(count)]
        for chosen in assignments
    )
    optimum = min(max(load) for load in loads)
    assert makespan(sorted(seconds, reverse=True), count) <= optimum * (4 / 3 - 1 / (3 * count)) + 1e-9


@given(durations, slots)
def test_another_slot_never_lengthens_longest_first(seconds, count):
    ordered = sorted(seconds, reverse=True)
    assert makespan(ordered, count + 1) <= makespan(ordered, count) + 1e-9


@pytest.mark.parametrize(("count", "ratio"), [(4, 1.029), (5, 1.000), (8, 1.105), (10, 1.000), (20, 1.0)])
def test_the_depth_sweep_packs_as_worked_out_by_hand(count, ratio):
    seconds = [0.2125 * blocks for blocks in range(80, 0, -4)]
    assert makespan(seconds, count) / lower_bound(seconds, count) == pytest.approx(ratio, abs=0.001)


CONFIG = {
    "datasets": {"digits": {"source": "digits"}},
    "sweeps": {
        "depth": {"dataset": "digits", "grid": {"model_args.blocks": [4, 8, 12, 16]}, "slots": {"gpus_per_node": 2}}
    },
}


def plan(results, limit_gpus=math.inf, gpu_models=(), **changes):
    config = check_config({**CONFIG, "sweeps": {"depth": {**CONFIG["sweeps"]["depth"], **changes}}})
    return plan_sweep(config, "depth", results, limit_gpus=limit_gpus, gpu_models=gpu_models)


def finish(results, *names, seconds_per_block=0.5, generation=0, metrics=None, start=(), gpu_model="", **changes):
    known = plan(results, **changes)
    with session_of(results / "sweeps/depth") as journal:
        for event in start:
            journal.append(event)
        for name in names:
            number = len(known.state.attempts.get(name, ())) + 1
            seconds = known.state.trials[name].values["model_args.blocks"] * seconds_per_block
            where = {"gpu_model": gpu_model, "device": "NVIDIA A100-SXM4-80GB"}
            journal.append("started", trial=name, attempt=number, generation=generation, **where)
            journal.append("finished", trial=name, attempt=number, seconds=seconds, metrics=metrics or {})


def test_before_anything_ran_all_is_pending_and_nothing_is_predicted(tmp_path):
    first = plan(tmp_path)
    assert len(first.forecast.pending) == 4
    assert first.predicted_seconds is None
    assert summarize_plan(first).startswith("sweep depth: 4 of 4 trials pending; requests 2 slots of 1 GPU and 1 CPU")


def test_what_finished_is_not_pending_and_predicts_the_rest(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, names[0], names[1])
    after = plan(tmp_path)
    assert after.forecast.pending == [names[3], names[2]], "longest first"
    assert after.forecast.seconds == pytest.approx({names[2]: 6.0, names[3]: 8.0}, rel=0.05), "linear in depth"
    assert after.predicted_seconds == pytest.approx(8.0, rel=0.05)
    assert "predicted 8 s" in summarize_plan(after)
    assert after.walltime_minutes * 60 >= after.predicted_seconds


@pytest.mark.parametrize(("patience", "factor"), [(None, 1), (2, 2)])
def test_after_patience_a_prediction_is_that_of_all_epochs(tmp_path, patience, factor):
    """Trials that ended after 5 of 10 epochs: how many the others train is unknown, and at most 10."""
    changes = {"train": {"epochs": 10, "patience": patience}}
    names = list(plan(tmp_path, **changes).state.trials)
    finish(tmp_path, names[0], names[1], metrics={"epoch": 5}, **changes)
    after = plan(tmp_path, **changes)
    assert after.forecast.seconds == pytest.approx({names[2]: 6.0 * factor, names[3]: 8.0 * factor}, rel=0.05)
    assert ("if none is stopped early" in summarize_plan(after)) == (patience is not None)


def test_the_plan_is_that_of_the_order_in_which_trials_start(tmp_path):
    depth = {"grid": {"model_args.blocks": list(range(4, 81, 4))}, "slots": {"gpus_per_node": 8}}
    finish(tmp_path, *plan(tmp_path, **depth).state.trials, seconds_per_block=0.2125, **depth)
    again = plan(tmp_path, retrain=1, **depth)
    seconds = [again.forecast.seconds[name] for name in again.forecast.order(8)]
    assert again.predicted_seconds == makespan(seconds, 8)
    assert seconds == sorted(seconds, reverse=True)
    assert makespan(seconds, 8) <= 1.11 * lower_bound(seconds, 8)
    assert len(again.forecast.makespan_samples(8)) >= 20


def test_trials_that_failed_before_come_last(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, names[0])
    with session_of(tmp_path / "sweeps/depth") as journal:
        journal.append("started", trial=names[3], attempt=1, generation=0)
        journal.append("failed", trial=names[3], attempt=1, error="ValueError: too deep")
    assert plan(tmp_path).forecast.pending == [names[2], names[1], names[3]]
    assert len(plan(tmp_path).state.failed) == 1


def test_a_sweep_that_is_done_has_nothing_pending(tmp_path):
    finish(tmp_path, *plan(tmp_path).state.trials)
    done = plan(tmp_path, slots={"jobs": 4, "gpus_per_node": 8})
    assert summarize_plan(done) == "sweep depth: 0 of 4 trials pending; only the tables will be written"
    assert (done.parallel_jobs, done.slots.gpus_per_node) == (1, 0), "tables need no GPU"
    assert done.walltime_minutes == 10
    assert not done.forecast.seconds
    assert "measured_seconds" not in vars(done.forecast), "of many trials, this takes most of the time of `-n`"


def test_retrain_makes_results_pending_again_once(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, *names)
    again = plan(tmp_path, retrain=1)
    assert len(again.forecast.pending) == 4
    assert again.forecast.pending[0] == names[3], "earlier durations are evidence all the same"
    finish(tmp_path, *names, generation=1)
    assert plan(tmp_path, retrain=1).forecast.pending == []


def test_trials_trained_again_are_stopped_by_what_came_since(tmp_path):
    """What `retrain` has overruled counts neither as told already nor as what others are compared with."""
    stop, names = {"method": "asha", "epochs": 9}, list(plan(tmp_path).state.trials)
    with session_of(tmp_path / "sweeps/depth") as journal:
        for name in names:
            journal.append("started", trial=name, attempt=1, generation=0)
            journal.append("epoch", trial=name, attempt=1, metrics={"epoch": 1, "val_accuracy": 0.9})
            journal.append("finished", trial=name, attempt=1, seconds=1.0, metrics={"val_accuracy": 0.9})
    judge = EarlyStoppingRule.of(plan(tmp_path, retrain=1, stop=stop).state)
    assert judge.verdict(names[0], {"epoch": 1, "val_accuracy": 0.5}) == ""
    assert judge.verdict(names[1], {"epoch": 1, "val_accuracy": 0.4}).startswith("asha: rank 2 of the 2")


def test_the_digest_changes_with_the_results_wanted_and_not_with_what_is_pending(tmp_path):
    before = plan(tmp_path).state.space.digest
    finish(tmp_path, next(iter(plan(tmp_path).state.trials)))
    assert plan(tmp_path).state.space.digest == before
    assert plan(tmp_path, slots={"gpus_per_node": 8}, retries=4, cost="epochs").state.space.digest == before
    assert plan(tmp_path, retrain=1).state.space.digest != before
    assert plan(tmp_path, grid={"model_args.blocks": [4]}).state.space.digest != before


def test_staging_other_data_makes_every_trial_pending(tmp_path):
    finish(tmp_path, *plan(tmp_path).state.trials)
    meta = tmp_path / "data/digits/meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"kind": None, "digest": "other data"}))
    assert len(plan(tmp_path).forecast.pending) == 4


def test_a_cost_expression_orders_what_has_never_run(tmp_path):
    ordered = plan(tmp_path, cost="-model_args.blocks")
    assert [ordered.state.trials[name].values["model_args.blocks"] for name in ordered.forecast.pending] == [
        4,
        8,
        12,
        16,
    ]


@pytest.mark.parametrize("known", ["cost", "FLOPs"])
def test_from_the_first_trial_that_finished_relative_costs_tell_seconds(tmp_path, known):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, names[3])  # 16 blocks: 8 s
    if known == "FLOPs":
        with session_of(tmp_path / "sweeps/depth") as journal:
            journal.append("work", flops={name: 1e9 * (index + 1) for index, name in enumerate(names)})
    after = plan(tmp_path, cost="model_args.blocks") if known == "cost" else plan(tmp_path)
    assert after.forecast.pending == [names[2], names[1], names[0]]
    assert after.forecast.seconds == pytest.approx({names[0]: 2.0, names[1]: 4.0, names[2]: 6.0}, rel=0.2)


TWENTY = {"grid": {"model_args.blocks": list(range(4, 81, 4))}, "slots": {"gpus_per_node": 4}}


@pytest.mark.parametrize("costs", [{}, {"cost": "model_args.blocks"}])
def test_the_ratio_of_two_gpu_models_is_learnt_from_different_trials(tmp_path, costs):
    """An A100 takes 0.2 s per block, an H100 half of it. What was measured is not mixed."""
    changes = TWENTY | costs
    names = list(plan(tmp_path, **changes).state.trials)
    finish(tmp_path, *names[:12:3], seconds_per_block=0.2, gpu_model="a100", **changes)
    finish(tmp_path, *names[1:12:3], seconds_per_block=0.1, gpu_model="h100", **changes)
    for model, per_block in {"a100": 0.2, "h100": 0.1}.items():
        found = plan(tmp_path, gpu_models=(model,), **changes)
        seconds = {name: per_block * found.state.trials[name].values["model_args.blocks"] for name in names}
        known = found.forecast.seconds
        assert known == pytest.approx({name: seconds[name] for name in known}, rel=0.1), model
        low, high = found.predicted_range
        assert low <= makespan([seconds[name] for name in found.forecast.order(4)], 4) <= high < 2 * low
        assert summarize_plan(found).endswith(f"of training after the start-up on {model}")


def test_durations_on_a_gpu_model_without_evidence_are_those_on_another_but_uncertain(tmp_path):
    names = list(plan(tmp_path, **TWENTY).state.trials)
    finish(tmp_path, *names[::2], seconds_per_block=6, gpu_model="a100", **TWENTY)
    known, unknown = (plan(tmp_path, gpu_models=(model,), **TWENTY) for model in ("a100", "h100"))
    assert unknown.forecast.seconds == pytest.approx(known.forecast.seconds, rel=0.3), "not scaled"
    (low, high), (least, most) = known.predicted_range, unknown.predicted_range
    assert most / least > 2 * high / low
    assert unknown.walltime_minutes > 1.5 * known.walltime_minutes
    assert summarize_plan(unknown).endswith(" on h100 (predicted as on a100: none was measured on h100)")
    assert "a100" not in summarize_plan(known), "not mentioned where it makes no difference"


def test_trials_on_gpus_without_a_type_count_for_those_that_a_job_gets(tmp_path):
    """Slurm may know no type, or may not tell the job, and the sweep may have begun on another machine."""
    names = list(plan(tmp_path, **TWENTY).state.trials)
    finish(tmp_path, *names[::2], seconds_per_block=6, **TWENTY)
    without, known = plan(tmp_path, **TWENTY), plan(tmp_path, gpu_models=("a100",), **TWENTY)
    assert known.forecast.seconds == without.forecast.seconds
    assert summarize_plan(known) == summarize_plan(without)


def test_a_job_that_may_get_one_of_two_gpu_models_requests_time_for_the_slower_one(tmp_path):
    names = list(plan(tmp_path, **TWENTY).state.trials)
    finish(tmp_path, *names[:12:2], seconds_per_block=8, gpu_model="v100", **TWENTY)
    finish(tmp_path, *names[1:12:2], seconds_per_block=2, gpu_model="h100", **TWENTY)
    models = (["v100"], ["h100"], ["h100", "v100"])
    slow, fast, either = (plan(tmp_path, gpu_models=each, **TWENTY) for each in models)
    assert either.walltime_minutes >= 0.9 * slow.walltime_minutes > 2 * fast.walltime_minutes
    low, high = either.predicted_range
    assert low < fast.predicted_seconds < slow.predicted_seconds < high
    assert summarize_plan(either).endswith("of training after the start-up on h100 or v100")
    unknown = plan(tmp_path, **TWENTY)
    assert unknown.walltime_minutes == either.walltime_minutes, "as if it may get those of others"


def test_a_job_predicts_from_what_has_finished_on_its_own_gpus(tmp_path):
    names = list(plan(tmp_path, **TWENTY).state.trials)
    finish(tmp_path, *names[::2], seconds_per_block=0.2, gpu_model="a100", **TWENTY)
    here = plan(tmp_path, gpu_models=("h100",), **TWENTY)
    blocks = {name: here.state.trials[name].values["model_args.blocks"] for name in names}
    found = here.forecast.predict(names[9::2], {name: 0.1 * blocks[name] for name in names[1:8:2]}).seconds
    assert found == pytest.approx([0.1 * blocks[name] for name in names[9::2]], rel=0.15)


def test_trials_that_took_no_measurable_time_are_no_evidence(tmp_path):
    """The seconds of a function that only computes a number round to 0."""
    found = plan(tmp_path, cost="model_args.blocks")
    names = list(found.state.trials)
    assert found.forecast.predict(names[2:], {names[0]: 0.0}) is None
    assert found.forecast.predict(names[2:], {names[0]: 0.0, names[1]: 4.0}).seconds == pytest.approx([6, 8], rel=0.1)


def test_what_a_search_is_still_to_draw_counts_as_what_it_has_drawn(tmp_path):
    search = {**SEARCH, "trials": 10}
    key = plan(tmp_path, grid={}, search=search).state.space.search_key
    values = [{"model_args.blocks": blocks} for blocks in (40, 80)]
    draws = [Suggested(search=key, values=each, params=each, attrs={}) for each in values]
    record_draws(tmp_path / "sweeps/depth", *draws)
    drawn = list(plan(tmp_path, grid={}, search=search).state.trials)[:2]
    finish(tmp_path, *drawn, grid={}, search=search)  # 20 and 40 s
    after = plan(tmp_path, grid={}, search=search)
    assert len(after.forecast.pending) == 8
    assert sorted(after.forecast.seconds.values()) == pytest.approx([20] * 4 + [40] * 4, rel=0.1)


SEARCH = {"trials": 3, "values": {"model_args.blocks": {"low": 4, "high": 80, "integer": True}}}


def test_a_cost_expression_may_have_keys_that_a_search_varies(tmp_path):
    made = plan(tmp_path, grid={}, search=SEARCH, cost="epochs * model_args.blocks")
    assert made.forecast.pending == ["draw-1", "draw-2", "draw-3"]


def test_the_walltime_covers_the_prediction_the_startup_and_a_margin(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, *names[:3], seconds_per_block=60, start=["session", "slot_up"])
    after = plan(tmp_path, grid={"model_args.blocks": list(range(4, 81, 4))})
    low, high = after.predicted_range
    assert low < after.predicted_seconds < high
    assert after.forecast.startup_seconds < 5, "as it was seen"
    startup = after.forecast.startup_seconds
    assert after.walltime_minutes * 60 >= high + startup
    assert after.sure_seconds >= high
    assert after.walltime_minutes * 60 <= after.sure_seconds + startup + 120
    assert re.search(r"predicted 6 h \d+ min \(\d+ h \d+ min to \d+ h \d+ min\)", summarize_plan(after))


def test_the_margin_shrinks_once_it_was_seen_how_long_a_job_takes_to_begin(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, *names[:3], seconds_per_block=60)
    before = plan(tmp_path)
    assert before.margin_seconds == 60
    with session_of(tmp_path / "sweeps/depth") as journal:
        journal.append("session", lead_seconds=4.0)
    after = plan(tmp_path)
    assert after.margin_seconds == 4 + 10 + 15, "as the last job took, the driver's margin, the end"
    assert after.walltime_minutes * 60 >= after.sure_seconds + after.forecast.startup_seconds + after.margin_seconds


def test_the_margin_covers_the_grace_of_commands(tmp_path):
    command = {"sweeps": {"s": {"command": "true {x}", "grid": {"x": [1, 2]}, "grace_seconds": 100}}}
    assert plan_sweep(check_config(command), "s", tmp_path).margin_seconds == 60 + 100
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.append("session", lead_seconds=4.0)
    assert plan_sweep(check_config(command), "s", tmp_path).margin_seconds == 4 + 10 + 100 + 15


def test_before_anything_was_seen_an_hour_is_asked_for_and_a_minute_to_start(tmp_path):
    assert plan(tmp_path).walltime_minutes == 60
    assert plan(tmp_path).forecast.startup_seconds == 60


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=8), slots)
@settings(max_examples=40, deadline=None)
def test_the_walltime_is_never_shorter_than_the_prediction(seconds, count):
    with TemporaryDirectory() as folder:
        values = {"grid": {"epochs": list(range(1, 20))}, "slots": {"gpus_per_node": count}}
        names = list(plan(Path(folder), **values).state.trials)
        with session_of(Path(folder) / "sweeps/depth") as journal:
            for name, each in zip(names, seconds, strict=False):
                record_attempt(journal, name, seconds=each)
        known = plan(Path(folder), **values)
        low, high = known.predicted_range
        assert low <= known.predicted_seconds <= high
        assert known.walltime_minutes * 60 >= min(high, known.forecast.serial_seconds)


# ---- what to ask for


MODELS = {
    "command": "true {model} {batch} {lr}",
    "slots": {"gpus_per_node": 4},
    "grid": {"model": ["r18", "r50", "vit"], "batch": [64, 128, 256], "lr": [0.1, 0.01, 0.001, 0.0001]},
}


def planned(results, sweep, finished=0, seconds=lambda values: 60.0):
    """The plan of a sweep of which the first trials of its order have finished."""
    config, folder = check_config({"sweeps": {"s": sweep}}), results / "sweeps/s"
    before = plan_sweep(config, "s", results)
    folder.mkdir(parents=True, exist_ok=True)
    with session_of(folder) as journal:
        for name in before.forecast.order(4)[:finished]:
            journal.append("started", trial=name, attempt=1)
            took = seconds(before.state.trials[name].values)
            journal.append("finished", trial=name, attempt=1, seconds=took, metrics={})
    return plan_sweep(config, "s", results)


@pytest.mark.parametrize(("cost", "models"), [({}, 3), ({"cost": "1 / batch"}, 1)])
def test_the_first_trials_span_the_keys_where_nothing_is_known_about_durations(tmp_path, cost, models):
    own = planned(tmp_path, MODELS | cost)
    order = own.forecast.order(4)
    assert len({own.state.trials[name].values["model"] for name in order[:4]}) == models
    assert sorted(order) == sorted(own.forecast.pending)
    assert (order == own.forecast.pending) == bool(cost), "longest first by the costs"
    rest = [name for name in own.state.trials if name not in order[:4]]
    assert cost or order[4:] == rest, "the others in the order of the config"


def test_a_trial_that_failed_is_not_among_the_first(tmp_path):
    first = planned(tmp_path, MODELS).forecast.order(4)
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.append("started", trial=first[0], attempt=1)
        journal.append("failed", trial=first[0], attempt=1, error="")
    again = planned(tmp_path, MODELS).forecast.order(4)
    assert (again[-1], len(set(again))) == (first[0], 36)


def test_the_interval_and_the_walltime_are_sane(tmp_path):
    """3 models x 3 batch sizes x 4 lr after 12 trials once made "2 s to 5141 h"; 24 trials are left."""

    def seconds(values):
        return 60.0 * {"r18": 1, "r50": 3, "vit": 6}[values["model"]] * (1 + 32 / values["batch"])

    own = planned(tmp_path, MODELS, 12, seconds)
    true = sum(seconds(own.state.trials[name].values) for name in own.forecast.pending) / 4
    low, high = own.predicted_range
    assert true / 3 < low < 1.1 * true
    assert 0.9 * true < high < 3 * true
    assert own.walltime_minutes * 60 < 5 * true


def test_after_one_trial_others_are_expected_to_take_about_as_long(tmp_path):
    sweep = {"command": "true {lr}", "grid": {"lr": [number / 100 for number in range(1, 61)]}}
    own = planned(tmp_path, sweep | {"slots": {"gpus_per_node": 4}}, 1)
    assert all(20 < seconds < 180 for seconds in own.forecast.seconds.values())
    assert own.predicted_range[1] < 60 * 15 * 60, "the durations may depend on lr"
    assert own.walltime_minutes <= 1.1 * 59 + 2, "one after another, start-up, and margin"


def test_the_walltime_is_at_most_that_of_the_trials_one_after_another(tmp_path):
    """One trial says little about nine others, but nobody expects these to take much longer than any before."""
    sweep = {"command": "true {name}", "grid": {"name": list("abcdefghij")}, "slots": {"gpus_per_node": 1}}
    assert planned(tmp_path, sweep).walltime_minutes == 60
    own = planned(tmp_path, sweep, 1, lambda _: 600.0)
    assert own.predicted_range[1] > own.sure_seconds == pytest.approx(9 * 600, rel=0.1)
    assert 90 <= own.walltime_minutes <= 100
    cost = {"grid": {"name": [1, *range(100, 109)]}, "cost": "name"}
    by_cost = planned(tmp_path / "cost", sweep | cost, 9, lambda values: 6.0 * values["name"])
    assert by_cost.walltime_minutes <= 11 + 2, "never longer than the longest one"


def test_slots_are_chosen_once_there_is_evidence_and_before_it_by_cost(tmp_path):
    auto = {"slots": "auto", "grid": {"model_args.blocks": list(range(4, 81, 4))}}
    assert plan(tmp_path, **auto).slots.gpus_per_node == 7, "20 equal trials: 3 rounds on 7 as on 8"
    assert plan(tmp_path, **auto, cost="model_args.blocks").slots.gpus_per_node == 8
    limited = plan(tmp_path, **auto, limit_gpus=6).slots
    assert limited.gpus_per_node == 5, "4 rounds on 5 as on 6"
    limit = {**auto, "goal": "fastest", "slots": {"gpus_per_node": 20}}
    by_cost = plan(tmp_path, **limit, cost="model_args.blocks")
    assert by_cost.slots.gpus_per_node == 10
    assert "requests 10 slots of 1 GPU and 1 CPU (fastest, of at most 20)" in summarize_plan(by_cost)
    names = list(plan(tmp_path, **limit).state.trials)
    finish(tmp_path, *[name for name in names if name in plan(tmp_path).state.trials], seconds_per_block=100)
    known = plan(tmp_path, **limit | {"goal": "deadline 7h"})
    assert known.predicted_range[1] + known.forecast.startup_seconds <= 7 * 3600
    assert "(deadline 9h, of at most 20)" in summarize_plan(plan(tmp_path, **limit | {"goal": "deadline 9h"}))
    impossible = summarize_plan(plan(tmp_path, **limit | {"goal": "deadline 1h"}))
    assert "(deadline 1h, which none of at most 20 is sure to meet)" in impossible
    cheaper = [
        option for option in known.options if option.unit_seconds < known.options[known.slots.count - 1].unit_seconds
    ]
    assert cheaper, "there are cheaper ones, and each may take longer"
    assert all(known._max_seconds(option) > 7 * 3600 for option in cheaper)


def test_a_goal_must_be_one(tmp_path):
    with pytest.raises(ConfigError, match=r"'soon' is not valid; use fastest, cheapest or, say, deadline 2h"):
        plan(tmp_path, goal="soon")
    assert plan(tmp_path, goal="deadline 90min").state.sweep.deadline_seconds == 5400
    assert plan(tmp_path, goal="deadline 1.5 d").state.sweep.deadline_seconds == 129600


DEEP = {"model_args.blocks": list(range(4, 81, 4))}


def test_several_jobs_share_the_trials_and_are_all_counted(tmp_path):
    """As one job with as many slots, but each asks for a walltime that fits a gap: its share, or the longest trial."""
    first = plan(tmp_path, grid=DEEP, slots={"jobs": 4, "gpus_per_node": 1})
    assert (first.parallel_jobs, first.walltime_minutes, first.requested_hours) == (4, 60, 4)
    assert "requests 4 jobs with 1 slot of 1 GPU and 1 CPU" in summarize_plan(first)
    assert "4 GPU-hours requested (4 x 1 GPU x 60 min)" in summarize_cost(first)
    finish(tmp_path, *list(first.state.trials)[:12], grid=DEEP, seconds_per_block=60)
    several = plan(tmp_path, grid=DEEP, slots={"jobs": 4, "gpus_per_node": 1})
    one = plan(tmp_path, grid=DEEP, slots={"gpus_per_node": 4})
    assert several.predicted_seconds == one.predicted_seconds
    assert several.used_hours == one.used_hours
    share = sum(several.forecast.seconds.values()) / 4
    samples = several.forecast.longest_samples
    assert several.sure_seconds == max(1.5 * share, samples[round(0.99 * (len(samples) - 1))])
    minutes, margin = several.walltime_minutes, several.margin_seconds
    startup = several.forecast.startup_seconds
    assert minutes == math.ceil((several.sure_seconds + startup + margin) / 60)
    assert several.requested_hours == 4 * minutes / 60
    assert several.all_jobs == 4


def test_a_job_of_several_has_the_walltime_of_the_longest_trial(tmp_path):
    names = list(plan(tmp_path, grid=DEEP).state.trials)
    finish(tmp_path, *names[:-4], grid=DEEP, seconds_per_block=60)
    last = plan(tmp_path, grid=DEEP, slots={"jobs": 8, "gpus_per_node": 1})
    assert last.parallel_jobs == 4, "one for each trial that is left"
    assert last.sure_seconds > max(last.forecast.seconds.values()) > 70 * 60


def test_trials_on_two_nodes_cost_as_much_as_on_one_with_as_many_gpus(tmp_path):
    names = list(plan(tmp_path, grid=DEEP).state.trials)
    finish(tmp_path, *names[:4], grid=DEEP, seconds_per_block=10)
    two = plan(tmp_path, grid=DEEP, slots={"jobs": 2, "nodes_per_trial": 2, "gpus_per_node": 4})
    one = plan(tmp_path, grid=DEEP, slots={"jobs": 2, "gpus_per_node": 8, "gpus_per_trial": 8})
    assert two.predicted_seconds == one.predicted_seconds
    assert two.requested_hours == one.requested_hours
    assert planned_alternatives(two) == planned_alternatives(one)
    assert "requests 2 jobs with 1 slot of 2 nodes with 4 GPUs and 1 CPU each" in summarize_plan(two)


def test_each_of_several_jobs_requests_the_longest_trial_or_more_than_its_share_of_the_work(tmp_path):
    names, slots = list(plan(tmp_path, grid=DEEP).state.trials), {"jobs": 5}
    finish(tmp_path, *names[:10], grid=DEEP, slots=slots, seconds_per_block=6)
    found = plan(tmp_path, grid=DEEP, slots=slots)
    share, samples = sum(found.forecast.seconds.values()) / 5, found.forecast.longest_samples
    assert found.sure_seconds == max(1.5 * share, samples[round(0.99 * (len(samples) - 1))])


def test_each_of_several_jobs_that_a_partition_cuts_short_is_followed_by_others(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, *names[:2], seconds_per_block=600)  # left are 2 h and 2 h 40 min
    slots = {"jobs": 2, "gpus_per_node": 1}
    config = check_config({**CONFIG, "sweeps": {"depth": {**CONFIG["sweeps"]["depth"], "slots": slots}}})
    limited = plan_sweep(config, "depth", tmp_path, limit_minutes=60)
    assert (limited.parallel_jobs, limited.jobs >= 3) == (2, True)
    assert limited.all_jobs == 2 * limited.jobs == limited.requested_hours
    assert f"{limited.jobs} jobs one after another for each of these, because" in describe_limits(limited)


def test_what_takes_longer_than_a_partition_allows_is_planned_as_several_jobs(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, *names[:2], seconds_per_block=600)  # 4 and 8 blocks; left are 12 and 16: 2 h 40 min
    config = check_config(CONFIG)
    whole = plan_sweep(config, "depth", tmp_path)
    assert whole.jobs == 1
    limited = plan_sweep(config, "depth", tmp_path, limit_minutes=60)
    usable = 3600 - limited.forecast.startup_seconds - 60
    assert limited.jobs == math.ceil(whole.predicted_range[1] / usable) >= 3
    assert limited.walltime_minutes == 60
    why = "because a job may take at most 1 h 0 min"
    assert describe_limits(limited) == f"; {limited.jobs} jobs one after another, {why}"
    assert limited.requested_hours == 2 * limited.jobs
    fixed = plan_sweep(config, "depth", tmp_path, fixed_minutes=60, limit_minutes=1440)
    assert (fixed.jobs, fixed.requested_hours) == (limited.jobs, limited.requested_hours)
    longer = plan_sweep(config, "depth", tmp_path, fixed_minutes=600)
    assert (longer.jobs, longer.walltime_minutes, longer.requested_hours) == (1, 600, 20)
    assert plan_sweep(config, "depth", tmp_path, limit_minutes=24 * 60).walltime_minutes == whole.walltime_minutes


@given(durations, slots, st.floats(1, 200))
def test_jobs_of_trials_that_cannot_resume_are_as_few_as_longest_first_gives(seconds, count, limit):
    ordered = sorted(seconds, reverse=True)
    jobs = jobs_needed(ordered, count, seconds=limit)
    assert jobs <= len(ordered)
    assert jobs * count * limit >= sum(min(each, limit) for each in ordered) * (1 - 1e-9)
    if makespan(ordered, count) <= limit:
        assert jobs == 1
    if min(ordered) > limit / 2:
        assert jobs == math.ceil(len(ordered) / count), "one trial per slot and job"


def own_plan(results, *, limit_minutes=math.inf, gpu_models=(), **changes):
    """Eight trials of a program that takes five hours, two of which have finished, on two slots."""
    sweep = {"command": "true {seed}", "grid": {"seed": list(range(8))}, "slots": {"gpus_per_node": 2}, **changes}
    config = check_config({"sweeps": {"depth": sweep}})
    names = list(plan_sweep(config, "depth", results).state.trials)
    if not (results / "sweeps").exists():
        with session_of(results / "sweeps/depth") as journal:
            for name in names[:2]:
                record_attempt(journal, name, seconds=5 * 3600.0)
    return plan_sweep(config, "depth", results, limit_minutes=limit_minutes, gpu_models=gpu_models)


def test_trials_that_cannot_resume_are_planned_as_jobs_in_which_each_can_end(tmp_path):
    assert own_plan(tmp_path, limit_minutes=8 * 60).jobs == 3, "two at a time, and no time for two in turn"
    assert own_plan(tmp_path, limit_minutes=8 * 60).too_long == []
    short = own_plan(tmp_path, limit_minutes=4 * 60)
    assert len(short.too_long) == 6
    assert "6 of 6 pending trials can never end: trial" in describe_limits(short)
    assert re.search(
        r"takes at least 4 h \d+ min and cannot resume; a job may take 4 h 0 min at most, but its start and its end, "
        r"with the grace period of trials, need .* \(3 h \d+ min left for trials\): request a partition or QOS",
        describe_limits(short),
    )
    assert "for trials): raise `walltime: 3h` of the sweep, or give" in describe_limits(
        own_plan(tmp_path, walltime="3h")
    )
    by_profile = replace(short, fixed_minutes=240)
    assert "raise `runtime: 240` in `set-resources` of the profile, or" in describe_limits(by_profile)
    resumed = own_plan(tmp_path, limit_minutes=4 * 60, checkpoint="*.pt")
    assert resumed.too_long == []
    assert resumed.jobs >= 4, "15 h of work on each slot"


def interrupt(results, names, *, hours, gpu_model=""):
    """An attempt at each of these trials that ran so long, and did not end."""
    with session_of(results / "sweeps/depth") as journal:
        for name in names:
            of_trial = {"trial": name, "attempt": 1}
            journal.write({"event": "started", "time": 0.0, "gpu_model": gpu_model, **of_trial})
            journal.write({"event": "interrupted", "time": hours * 3600.0, **of_trial}, durable=True)


def test_a_trial_that_was_interrupted_and_cannot_resume_is_known_to_take_longer(tmp_path):
    (tmp_path / "sweeps/depth").mkdir(parents=True)
    first = own_plan(tmp_path, limit_minutes=24 * 60)
    assert first.walltime_minutes == 60
    interrupt(tmp_path, first.forecast.pending[:2], hours=0.97)
    assert own_plan(tmp_path, limit_minutes=24 * 60).walltime_minutes >= 116, "an hour would not do again"
    assert own_plan(tmp_path, limit_minutes=24 * 60, checkpoint="*.pt").walltime_minutes == 60
    assert own_plan(tmp_path, limit_minutes=90).too_long == []
    short = own_plan(tmp_path, limit_minutes=60)
    assert "2 of 8 pending trials can never end: trial" in describe_limits(short)
    assert "takes at least 1 h 1 min" in describe_limits(short)
    assert "if something else held it up, increase `retrain`" in describe_limits(short)
    again = own_plan(tmp_path, limit_minutes=60, retrain=1)
    assert (again.too_long, again.walltime_minutes) == ([], 60), "otherwise they never start again"


def test_how_long_a_trial_ran_on_another_gpu_model_is_no_least_duration(tmp_path):
    (tmp_path / "sweeps/depth").mkdir(parents=True)
    interrupt(tmp_path, own_plan(tmp_path).forecast.pending, hours=0.97, gpu_model="v100")
    least = {model: own_plan(tmp_path, gpu_models=[model]).forecast.min_seconds for model in ("v100", "h100")}
    assert [len(found) for found in least.values()] == [8, 0]
    assert len(own_plan(tmp_path, gpu_models=["h100", "v100"]).forecast.min_seconds) == 8, "it may get the same again"


def test_an_interrupted_trial_is_predicted_to_take_longer_than_others_that_finished(tmp_path):
    own = own_plan(tmp_path, limit_minutes=24 * 60)
    odd, *others = own.forecast.pending
    interrupt(tmp_path, [odd], hours=8)
    plan = own_plan(tmp_path, limit_minutes=24 * 60)
    assert plan.forecast.min_seconds[odd] > 8 * 3600
    assert plan.forecast.seconds[odd] == pytest.approx(1.525 * 8 * 3600)
    assert max(plan.forecast.seconds[name] for name in others) < 6 * 3600
    assert plan.walltime_minutes > 15 * 60
    with session_of(tmp_path / "sweeps/depth") as journal:
        journal.append("started", trial=odd, attempt=2)
        journal.append("finished", trial=odd, attempt=2, seconds=5 * 3600.0, metrics={})
    again = own_plan(tmp_path, limit_minutes=24 * 60, retrain=1)
    assert again.forecast.seconds[odd] < 6 * 3600, "it was not longer after all"


def test_a_function_that_has_left_no_checkpoint_needs_more_time_than_it_had(tmp_path):
    own = {"dataset": None, "function": "mine:run"}
    kept, lost, *_ = plan(tmp_path, **own).forecast.pending
    (tmp_path / f"sweeps/depth/checkpoints/{kept}").mkdir(parents=True)
    (tmp_path / f"sweeps/depth/checkpoints/{kept}/last.pt").touch()
    interrupt(tmp_path, [kept, lost], hours=2)
    again = plan(tmp_path, **own)
    assert list(again.forecast.min_seconds) == [lost]
    assert again.walltime_minutes > 2 * 120
    assert again.too_long == []
    short = replace(again, limit_minutes=120)
    assert short.too_long == [lost]
    assert f"pending trials can never end: trial {lost} takes at least 2 h" in describe_limits(short)
    assert "or let the function save to `context.checkpoint_dir`; if something" in describe_limits(short)
    with pytest.raises(ConfigError, match="resumable: is no longer an option: a function resumes from what it has"):
        plan(tmp_path, resumable=False)


def test_the_waste_within_a_budget_is_that_of_the_trials_that_fit_it(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, *names[:2], seconds_per_block=600)  # left are 12 and 16 blocks: 7200 and 9600 s
    slots = {"gpus_per_node": 1}
    whole = plan(tmp_path, slots=slots)
    part = plan(tmp_path, slots=slots, budget={"gpu_hours": 3})
    assert (part.trials_in_budget, part.used_hours) == (1, pytest.approx(3, rel=0.01))
    assert 0 < whole.wasted_fraction < part.wasted_fraction < 1


def test_what_it_costs_is_said_beside_what_other_ways_would(tmp_path):
    names = list(plan(tmp_path).state.trials)
    finish(tmp_path, *names[:2], seconds_per_block=600)  # left are 12 and 16 blocks: 7200 and 9600 s
    priced = plan_sweep(check_config({**CONFIG, "pricing": {"gpu_hour": 2}}), "depth", tmp_path)
    assert priced.used_hours == pytest.approx(2 * (priced.predicted_seconds + 60) / 3600)
    assert priced.predicted_seconds == pytest.approx(9600, rel=0.05)
    separate, array = planned_alternatives(priced)
    assert separate.requested_unit_seconds == pytest.approx(PADDING * 16800, rel=0.05)
    assert array.requested_unit_seconds == pytest.approx(PADDING * 19200, rel=0.05)
    assert {each.basis for each in planned_alternatives(priced)} == {"predicted"}
    words = summarize_cost(priced)
    used = f"{priced.used_hours:.3g} of them predicted to be used (costs {2 * priced.used_hours:.2f})"
    assert f"{priced.requested_hours:.3g} GPU-hours requested, {used}" in words
    priced.state.sessions.append(Session(SessionStarted(), slot_startups=[360.0]))
    later, _ = planned_alternatives(replace(priced))
    assert later.requested_unit_seconds == pytest.approx(separate.requested_unit_seconds + 720 * PADDING)


@pytest.mark.parametrize(("names", "minutes"), [("", 120), ("gpu", 30), ("gpu,long", math.inf), ("other", math.inf)])
def test_the_limit_is_that_of_the_partition(names, minutes):
    lines = [
        "cpu*|up|2:00:00|1|8|1000|(null)|(null)",
        "gpu|up|30:00|1|8|1000|gpu:4|(null)",
        "long|up|infinite|1|8|1000|gpu:4|(null)",
    ]
    assert max_walltime_minutes([parse_partition(line) for line in lines], names) == minutes
