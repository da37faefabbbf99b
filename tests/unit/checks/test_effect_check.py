"""The verdicts of the effect check on what runs report."""

import itertools
import json
import math

import pytest
from trainyard.checks import effect_check
from trainyard.checks.effect_check import find_effects, read_steps
from trainyard.config.load import check_config

Try = effect_check._Try


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """The finding on the only varied key of a sweep, whose runs report what `show` makes of its values."""

    def run(varied, show, *, unseeded=None, args=None):
        def run_once(tries, values, folder, is_seeded):
            return show(values) if is_seeded or unseeded is None else unseeded()

        monkeypatch.setattr(effect_check._Tries, "_try", run_once)
        config = check_config({"sweeps": {"own": {"command": "run {args}", "grid": varied, "args": args or {}}}})
        (finding,) = find_effects(config, tmp_path, seconds=10)
        return finding.verdict, finding.message

    return run


def report(loss, *, epochs=4, seconds=4.0, whole=True):
    rows = {f"epoch {epoch}": {"loss": loss / epoch} for epoch in range(1, epochs + 1)}
    return Try(rows, seconds=seconds, is_whole=whole)


def test_a_key_that_changes_results_is_told_with_the_first_difference(judge):
    verdict = judge({"lr": [0.1, 0.2]}, lambda values: report(2.31717 + values["lr"]))
    assert verdict == ("ok", "`lr` changes results (loss 2.41717 -> 2.51717 at epoch 1)")


def test_a_key_without_effect_fails(judge):
    same = report(2.31717)
    assert judge({"amp": [True, False]}, lambda values: same) == (
        "fails",
        "`amp` has no effect: true and false give the same 4 numbers",
    )


def test_that_a_value_is_printed_is_no_effect(judge):
    def show(values):
        return Try({"place 1": {"lr": values["dropout"], "loss": 2.31717}, "place 2": {"loss": 1.9143}}, is_whole=True)

    assert judge({"dropout": [1, 2]}, show)[0] == "fails"


def test_a_key_that_changes_how_much_a_program_does_has_an_effect(judge):
    verdict = judge({"epochs": [4, 5]}, lambda values: report(2.31717, epochs=values["epochs"]))
    assert verdict == ("ok", "`epochs` changes results (loss none -> 0.463434 at epoch 5)")


@pytest.mark.parametrize("key", ["epochs", "patience", "warmup_steps", "eval_every", "lr_decay"])
def test_a_key_that_may_act_later_is_unknown_if_the_program_was_ended_before(judge, key):
    verdict, message = judge({key: [4, 5]}, lambda values: report(2.31717, whole=False))
    assert verdict == "unknown"
    assert "may have an effect later" in message


def test_what_differs_from_run_to_run_is_no_effect(judge):
    losses = itertools.cycle([2.31, 2.35, 2.29, 2.33])
    verdict, message = judge({"amp": [True, False]}, lambda values: report(next(losses)))
    assert verdict == "unknown"
    assert "results differ from run to run with the same settings (loss)" in message


def test_an_effect_beyond_noise_is_found(judge):
    noise = itertools.cycle([0.001, 0.002, 0.003])
    assert judge({"lr": [1, 2]}, lambda values: report(values["lr"] + next(noise)))[0] == "ok"


def test_a_seed_that_does_not_make_results_repeatable_is_a_warning(judge):
    losses = itertools.cycle([2.31, 2.35, 2.29, 2.33])
    verdict, message = judge({"seed": [1, 2]}, lambda values: report(next(losses)))
    assert verdict == "warns"
    assert "does not make results repeatable" in message


def test_the_steps_of_several_processes_are_told_apart_in_the_order_of_their_start(tmp_path):
    lines = [[7, 1, 0.5], [3, 1, 0.25], [7, 2, 0.75], [3, 2, float("nan")]]
    (tmp_path / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "[7, 3, 0.")
    assert read_steps(tmp_path / "steps.jsonl") == {
        "step 1 of process 2": {"parameters": 0.5},
        "step 1 of process 1": {"parameters": 0.25},
        "step 2 of process 2": {"parameters": 0.75},
        "step 2 of process 1": {"parameters": math.inf},
    }


def with_steps(norm, *, rows=None, whole=False):
    return Try(rows or {}, {f"step {step}": {"parameters": norm / step} for step in range(1, 9)}, is_whole=whole)


def test_parameters_tell_what_a_program_prints_with_few_digits(judge):
    rows = {"place 1": {"accuracy": 0.97}}
    verdict, message = judge({"amp": [True, False]}, lambda values: with_steps(2.31717, rows=rows, whole=True))
    assert verdict == "fails"
    assert message.endswith("give the same 9 numbers, 8 of which are of all parameters after a step")
    show = lambda values: with_steps(2.31717 + values["lr"], rows=rows)  # noqa: E731
    assert judge({"lr": [1, 2]}, show) == ("ok", "`lr` changes results (parameters 3.31717 -> 4.31717 at step 1)")


def test_a_key_may_have_an_effect_on_metrics_that_did_not_come_yet(judge):
    assert judge({"beta": [1, 2]}, lambda values: with_steps(2.31717))[0] == "unknown"


def test_noise_in_the_output_alone_is_not_in_the_results(judge):
    speeds = itertools.cycle([0.31, 0.35, 0.29, 0.33])
    show = lambda values: with_steps(2.31717, rows={"place 1": {"speed": next(speeds)}})  # noqa: E731
    assert judge({"amp": [True, False]}, show)[0] == "fails"
    assert judge({"momentum": [0.5, 0.9]}, show)[0] == "fails"


def test_a_seed_without_effect_fails_and_one_that_is_not_enough_is_a_warning(judge):
    assert judge({"seed": [1, 2]}, lambda values: report(2.31717))[0] == "fails"
    assert judge({"seed": [1, 2]}, lambda values: report(2.31717 + values["seed"]))[0] == "ok"
    losses = itertools.cycle([2.31, 2.35])
    show = lambda values: report(2.31717 + values["seed"])  # noqa: E731
    verdict, message = judge({"seed": [1, 2]}, show, unseeded=lambda: report(next(losses)))
    assert verdict == "warns"
    assert "does not make results repeatable" in message


def test_another_speed_is_no_change_of_results(judge):
    verdict, message = judge(
        {"loader": ["a", "b"]}, lambda values: report(2.317, seconds=9 if "a" in values["loader"] else 4)
    )
    assert verdict == "ok"
    assert message.startswith("`loader` changes only the speed: ")
    assert message.endswith("in 2.2 and 1 s per row")


def test_a_key_of_the_speed_that_changes_nothing_is_no_failure(judge):
    assert judge({"num_workers": [0, 4]}, lambda values: report(2.31717))[0] == "unknown"


@pytest.mark.parametrize("measured", [[4, 9, 4, 4, 4], [4, 9, 4, 9, 9]])  # in the second, the node is slow for a while
def test_a_speed_that_only_some_runs_have_is_chance(judge, measured):
    seconds = iter(measured)
    assert judge({"amp": [True, False]}, lambda values: report(2.31717, seconds=next(seconds)))[0] == "fails"


def test_a_small_number_is_tried_at_a_thousand_times_its_value(judge):
    def show(values):
        return report(round(2.31717 + values["weight_decay"], 3))

    verdict, message = judge({"weight_decay": [0, 0.0001]}, show)
    assert verdict == "unknown"
    assert "may have an effect, as 0.1 has" in message
    assert judge({"weight_decay": [0, 0.0001]}, lambda values: report(2.31717))[0] == "fails"


def test_few_digits_may_be_the_same_by_chance(judge):
    show = lambda values: Try({"place 1": {"accuracy": 0.97}}, is_whole=True)  # noqa: E731
    verdict, message = judge({"amp": [True, False]}, show)
    assert verdict == "unknown"
    assert "may be chance" in message


def test_a_program_that_shows_nothing_is_unknown(judge):
    verdict, message = judge({"amp": [True, False]}, lambda values: Try())
    assert (verdict, message) == ("unknown", "`amp` is not known: the program reported no numbers in its time")


def test_runs_that_were_ended_too_early_tell_nothing(judge):
    def show(values):
        return report(2.31717, epochs=2 if values["amp"] else 6, whole=False)

    assert judge({"amp": [True, False]}, show)[0] == "unknown"
    verdict, message = judge({"amp": [False, True]}, lambda values: Try() if values["amp"] else report(2.31717))
    assert (verdict, message) == ("unknown", "`amp` is not known: the program reported no numbers in its time")


def test_an_extreme_value_that_shows_nothing_in_its_time_is_no_proof(judge):
    def show(values):
        return Try() if values["decay"] > 1 else report(2.31717)

    assert judge({"decay": [0.0, 0.1]}, show)[0] == "unknown"


def test_a_program_that_fails_is_told_with_its_settings(judge):
    def show(values):
        return Try(failure="no such optimizer") if values["optimizer"] == "b" else report(2.31717)

    verdict, message = judge({"optimizer": ["a", "b"]}, show)
    assert verdict == "warns"
    assert message == '`optimizer` is not known: {"optimizer": "b"} fails: no such optimizer'
    assert judge({"optimizer": ["b", "a"]}, show) == ("fails", message)


def test_a_loss_that_becomes_nan_is_a_change(judge):
    show = lambda values: report(2.31717 if values["lr"] < 1 else math.inf)  # noqa: E731
    assert judge({"lr": [0.1, 10.0]}, show)[0] == "ok"


def test_each_key_is_tried_with_its_last_value_beside_the_first_of_the_others(tmp_path, monkeypatch):
    tried = []

    def show(tries, values, folder, is_seeded):
        tried.append(dict(values))
        return report(2.31717 + sum(values.values()))

    monkeypatch.setattr(effect_check._Tries, "_try", show)
    searched = {"lr": {"low": 0.25, "high": 0.5}, "width": [1, 2, 4]}
    sweep = {"command": "run {args}", "metrics": {"file": "log.csv"}, "metric": "loss"}
    sweep |= {"search": {"trials": 9, "values": searched}}
    found = list(find_effects(check_config({"sweeps": {"own": sweep}}), tmp_path, seconds=10))
    assert [finding.verdict for finding in found] == ["ok", "ok"]
    first = {"lr": 0.25, "width": 1}
    assert tried == [first, {**first, "lr": 0.5}, first, {**first, "width": 4}]
