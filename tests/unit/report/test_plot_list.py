"""A plot that could only say why it is empty is neither declared nor made."""

import re

import pytest
from trainyard.cli.workflow import Workflow
from trainyard.config.load import check_config
from trainyard.report.plot_list import PLOT_LABELS, ordered_labels, plots_of

ALWAYS = ("gantt", "waste", "prediction", "metric", "loss")
RANGE = {"low": 0.1, "high": 1}
SWEEPS = {
    "no key": ({}, ()),
    "one key": ({"grid": {"lr": {"start": 1, "stop": 50}}}, ()),
    "few trials": ({"grid": {"lr": [1, 2, 3], "width": [1, 2, 3, 4, 5, 6]}}, ("parallel",)),
    "enough trials": ({"grid": {"lr": [1, 2, 3, 4], "width": [1, 2, 3, 4, 5]}}, ("parallel", "importance")),
    "seeds beside one key": ({"grid": {"lr": [1, 2, 3, 4], "seed": [1, 2, 3, 4, 5]}}, ("parallel",)),
    "one group of keys": (
        {"grid": {"model": [{"n": n, "lr": n} for n in range(5)], "seed": [*range(5)]}},
        ("parallel",),
    ),
    "trials with other keys": ({"grid": {"lr": [1, 2]}, "trials": [{"width": 1}]}, ("parallel",)),
    "one key beside a constant one": ({"trials": [{"lr": 1, "width": 2}, {"lr": 2, "width": 2}]}, ()),
    "too few for five keys": ({"sample": {"count": 24, "values": dict.fromkeys("abcde", RANGE)}}, ("parallel",)),
    "a search": (
        {"search": {"method": "tpe", "trials": 20, "values": {"lr": RANGE, "x": [1, 2]}}, "metric": "rmse"},
        ("parallel", "importance"),
    ),
    "objectives": ({"grid": {"lr": [1, 2]}, "objectives": {"loss": "min", "seconds": "min"}}, ("front",)),
}


@pytest.fixture(scope="module")
def content():
    return {
        "sweeps": {name.replace(" ", "-"): {"function": "os:getcwd", **sweep} for name, (sweep, _) in SWEEPS.items()}
    }


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_has_the_plots_that_can_show_something(content, name):
    plots = plots_of(check_config(content), "sweeps", name.replace(" ", "-"))
    assert set(plots) == {*ALWAYS, *SWEEPS[name][1]}


def test_each_study_has_one_rule_which_makes_all_its_plots(tmp_path, content):
    content = {**content, "datasets": {"d": {"source": "digits"}}}
    yard = Workflow(content, results=tmp_path)
    for kind in PLOT_LABELS:
        for name in yard.config.datasets if kind == "data" else getattr(yard.config, kind):
            (rule,) = [rule for rule in yard.plot_rules(kind) if re.fullmatch(rule.names, name)]
            made = {str(tmp_path / "plots" / kind / name / f"{plot}.svg") for plot in rule.labels}
            assert made == {path for path in yard.plots() if f"/{kind}/{name}/" in path}
    assert [rule.name for rule in yard.plot_rules("sweeps")] == [
        "plot_sweeps",
        "plot_sweeps_without_front_without_parallel_without_importance",
        "plot_sweeps_without_front_without_importance",
        "plot_sweeps_without_front",
        "plot_sweeps_without_parallel_without_importance",
    ]
    assert not re.fullmatch(yard.plot_rules("scaling")[0].names, "any"), "there is no scaling study"


def test_labels_keep_their_order_in_a_report_which_sorts_them():
    for labels in PLOT_LABELS.values():
        ordered = list(ordered_labels(labels).values())
        assert sorted(ordered) == ordered
        assert [label.strip() for label in ordered] == list(labels.values())
