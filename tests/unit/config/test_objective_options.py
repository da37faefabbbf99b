"""The config of losses, metrics and what a training monitors: checked early, and without effect on other configs."""

import pytest
from trainyard.config.datasets import Python
from trainyard.config.load import check_config
from trainyard.config.parser import ConfigError
from trainyard.config.train import Train
from trainyard.config.trials import expand

DATASETS = {
    "digits": {"source": "digits"},
    "numbers": {"source": "python", "factory": "mine:build", "on_the_fly": True, "targets": ["x", "y"]},
}


def sweep_of(train, *, dataset="digits", **options):
    return {"datasets": DATASETS, "sweeps": {"s": {"dataset": dataset, "train": train, "grid": {"lr": [1]}, **options}}}


def test_new_keys_do_not_change_the_identities_of_earlier_configs():
    """These were computed before the keys existed."""
    config = check_config(sweep_of({"model": "cnn", "epochs": 2, "label_smoothing": 0.1}, metric="val_loss"))
    (trial,) = expand(config.sweeps["s"]).trials
    assert trial.content == '{"epochs": 2, "label_smoothing": 0.1, "lr": 1.0, "model": "cnn"}'
    assert trial.identity("data") == "d73299b1ad"
    assert "targets" not in Python(source="python", factory="mine:build").model_dump()


def test_a_list_of_metrics_is_the_mapping_of_its_names():
    by_list, by_name = (
        Train(metrics=["top5_accuracy", "a.b:Own.f1"]),
        {"top5_accuracy": "top5_accuracy", "f1": "a.b:Own.f1"},
    )
    assert by_list.metrics == Train(metrics=by_name).metrics == by_name
    assert by_list.further_metrics == ["val_top5_accuracy", "val_f1"]


MISTAKES = [
    ({"loss": "focal"}, "train.loss: 'focal' is not valid; a loss is cross_entropy or package.module:name"),
    ({"loss": "a:b", "label_smoothing": 0.1}, "label_smoothing is for the loss cross_entropy"),
    ({"loss_args": {"gamma": 2}}, "loss_args are for a loss of your own"),
    ({"metrics": ["f1"]}, "'f1' is not valid; a metric is top5_accuracy or package.module:name"),
    ({"metrics": ["a:f1", "b:f1"]}, "two metrics are called f1: give a mapping of names to paths"),
    ({"metrics": {"loss": "a:f1"}}, "val_loss is a metric of its own: use another name"),
    ({"monitor": "val_f1"}, "monitor is val_f1, which this training does not report; known: val_accuracy, val_loss"),
    ({"patience": 0}, "train.patience: input should be greater than 0"),
    ({"ema_decay": 1}, "train.ema_decay: input should be less than 1"),
]


@pytest.mark.parametrize(("train", "message"), MISTAKES)
def test_a_mistake_is_found_before_anything_runs(train, message):
    with pytest.raises(ConfigError) as error:
        check_config(sweep_of(train))
    assert message in str(error.value)


def test_a_sweep_is_judged_by_what_its_trainings_monitor():
    train = {"metrics": ["my:f1"], "monitor": "val_f1", "monitor_mode": "min"}
    plain = check_config(sweep_of(train)).sweeps["s"]
    assert plain.target == ("val_f1", "min")
    stopped = check_config(sweep_of(train, stop={"method": "asha"})).sweeps["s"]
    assert stopped.compared_by == ("val_f1", "min")
    best = check_config(sweep_of(train, metric="best_val_f1")).sweeps["s"]
    assert best.target == ("best_val_f1", "min")
    other = check_config(sweep_of(train, metric="val_accuracy")).sweeps["s"]
    assert other.target == ("val_accuracy", "max")


def test_it_must_be_clear_what_patience_is_about():
    with pytest.raises(ConfigError, match=r"metric is val_loss, but patience is about val_accuracy: set train.monitor"):
        check_config(sweep_of({"patience": 2}, metric="val_loss"))
    check_config(sweep_of({"patience": 2, "monitor": "val_accuracy"}, metric="val_loss"))
    check_config(sweep_of({"patience": 2, "monitor": "val_loss"}))


def test_numbers_as_labels_need_a_loss_and_a_metric_for_them():
    with pytest.raises(ConfigError) as error:
        check_config(sweep_of({}, dataset="numbers"))
    assert "sweeps.s.train.loss: the labels of 'numbers' are numbers (`targets`): give a loss" in str(error.value)
    assert (
        "sweeps.s.train.monitor: the labels of 'numbers' are numbers (`targets`), so there is no val_accuracy"
        in str(error.value)
    )
    check_config(sweep_of({"loss": "torch.nn:MSELoss", "monitor": "val_loss"}, dataset="numbers"))
    mixed = {"loss": "torch.nn:MSELoss", "monitor": "val_loss", "augment": {"mixup": 0.2}}
    with pytest.raises(ConfigError, match="mixup and cutmix mix classes"):
        check_config(sweep_of(mixed, dataset="numbers"))
    with pytest.raises(ConfigError, match="targets need `on_the_fly: true`"):
        check_config({"datasets": {"numbers": DATASETS["numbers"] | {"on_the_fly": False}}})
    trees = {"datasets": DATASETS, "trees": {"t": {"dataset": "numbers"}}}
    with pytest.raises(ConfigError, match="which `trees` cannot predict"):
        check_config(trees)


def test_each_trial_on_numbers_is_checked_by_its_own_values():
    losses = {"loss": ["torch.nn:MSELoss", "torch.nn:L1Loss"]}
    check_config(sweep_of({"monitor": "val_loss"}, dataset="numbers", grid=losses))
    train = {"loss": "torch.nn:MSELoss", "monitor": "val_loss"}
    with pytest.raises(ConfigError, match="so there is no val_accuracy"):
        check_config(sweep_of(train, dataset="numbers", grid={"monitor": ["val_loss", "val_accuracy"]}))
    with pytest.raises(ConfigError, match="mixup and cutmix mix classes"):
        check_config(sweep_of(train, dataset="numbers", grid={"augment.mixup": [0, 0.2]}))
