"""The config of losses, metrics and the best epoch: checked early, and without effect on other configs."""

import pytest
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
    ({"monitor": "val_f1"}, "train.monitor: is no longer an option: give `metric` beside `train`"),
    ({"patience": 0}, "train.patience: input should be greater than 0"),
    ({"ema_decay": 1}, "train.ema_decay: input should be less than 1"),
]


@pytest.mark.parametrize(("train", "message"), MISTAKES)
def test_a_mistake_is_found_before_anything_runs(train, message):
    with pytest.raises(ConfigError) as error:
        check_config(sweep_of(train))
    assert message in str(error.value)


def spec_of(config):
    (trial,) = expand(check_config(config).sweeps["s"]).trials
    return trial.spec


def test_patience_and_the_best_epoch_are_about_the_metric_of_the_sweep():
    own = {"metrics": ["my:f1"], "patience": 2}
    assert spec_of(sweep_of(own)).metric == "val_accuracy"
    assert spec_of(sweep_of(own, metric="val_f1")).metric == "val_f1"
    assert spec_of(sweep_of(own, metric="best_val_f1")).metric == "val_f1"
    assert spec_of(sweep_of(own, objectives={"seconds": "min", "val_f1": "max"})).metric == "val_f1"
    assert spec_of(sweep_of({"metrics": ["my:f1"]}, metric="best_val_f1")).metric == "val_f1"
    study = {"dataset": "digits", "scales": ["1x1"], "train": own, "metric": "val_f1"}
    config = check_config({"datasets": DATASETS, "scaling": {"s": study}})
    assert config.scaling["s"].train_at("1x1").metric == "val_f1"


def test_another_metric_trains_again_only_what_depends_on_it():
    def identity(train, **options):
        (trial,) = expand(check_config(sweep_of(train, **options)).sweeps["s"]).trials
        return trial.identity("data")

    assert identity({}, metric="val_loss") == identity({}) == identity({}, metric="best_val_accuracy")
    assert identity({}, metric="best_val_loss") != identity({}), "its table has no such column"
    assert identity({"patience": 2}, metric="val_loss") != identity({"patience": 2})


METRIC_MISTAKES = [
    ({"metric": "seconds"}, "patience is about the metric of an epoch, and metric is seconds"),
    ({"metric": "val_loss", "mode": "max"}, "the best epoch is that with the smallest val_loss, by its name"),
    ({"metric": "val_f1"}, "metric is val_f1, which no trial reports; known: epoch, lr, train_loss"),
]


@pytest.mark.parametrize(("options", "message"), METRIC_MISTAKES)
def test_the_metric_of_a_sweep_must_be_one_that_patience_can_follow(options, message):
    with pytest.raises(ConfigError) as error:
        check_config(sweep_of({"patience": 2}, **options))
    assert message in str(error.value)


def test_a_metric_that_no_training_reports_is_answered_with_those_that_it_does():
    with pytest.raises(ConfigError, match="which no trial reports") as error:
        check_config(sweep_of({}, metric="val_los"))
    assert "best_val_accuracy" in str(error.value)
    assert "best_None" not in str(error.value)


def test_the_metric_of_a_study_is_one_of_an_epoch():
    study = {"dataset": "digits", "scales": ["1x1"], "metric": "val_f1"}
    with pytest.raises(ConfigError, match=r"metric is val_f1, which no epoch reports; known: val_accuracy, val_loss"):
        check_config({"datasets": DATASETS, "scaling": {"s": study}})


def test_numbers_as_labels_need_a_loss_and_a_metric_for_them():
    with pytest.raises(ConfigError) as error:
        check_config(sweep_of({}, dataset="numbers"))
    assert "sweeps.s.train.loss: the labels of 'numbers' are numbers (`targets`): give a loss" in str(error.value)
    assert "sweeps.s.metric: the labels of 'numbers' are numbers (`targets`), so there is no val_accuracy" in str(
        error.value
    )
    of_numbers = {"dataset": "numbers", "metric": "val_loss"}
    check_config(sweep_of({"loss": "torch.nn:MSELoss"}, **of_numbers))
    mixed = {"loss": "torch.nn:MSELoss", "augment": {"mixup": 0.2}}
    with pytest.raises(ConfigError, match="mixup and cutmix mix classes"):
        check_config(sweep_of(mixed, **of_numbers))
    study = {"scales": ["1x1"], "train": {"loss": "torch.nn:MSELoss"}}
    check_config({"datasets": DATASETS, "scaling": {"s": study | of_numbers}})
    with pytest.raises(ConfigError, match=r"scaling\.s\.metric: the labels of 'numbers' are numbers"):
        check_config({"datasets": DATASETS, "scaling": {"s": study | {"dataset": "numbers"}}})
    with pytest.raises(ConfigError, match="targets need `on_the_fly: true`"):
        check_config({"datasets": {"numbers": DATASETS["numbers"] | {"on_the_fly": False}}})
    trees = {"datasets": DATASETS, "sweeps": {"t": {"dataset": "numbers", "trees": {}}}}
    with pytest.raises(ConfigError, match="which `trees` cannot predict"):
        check_config(trees)


def test_each_trial_on_numbers_is_checked_by_its_own_values():
    losses = {"loss": ["torch.nn:MSELoss", "torch.nn:L1Loss"]}
    check_config(sweep_of({}, dataset="numbers", metric="val_loss", grid=losses))
    train, mixed = {"loss": "torch.nn:MSELoss"}, {"augment.mixup": [0, 0.2]}
    with pytest.raises(ConfigError, match="mixup and cutmix mix classes"):
        check_config(sweep_of(train, dataset="numbers", metric="val_loss", grid=mixed))
