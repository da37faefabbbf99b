"""The learning rate of weak scaling."""

import pytest
from trainyard.config.load import check_config
from trainyard.config.parser import ConfigError


def study_of(**options):
    study = {"dataset": "digits", "scales": ["1x1", "1x4", "4x4"], "train": {"lr": 0.1, "batch_size": 64}, **options}
    return check_config({"datasets": {"digits": {"source": "digits"}}, "scaling": {"s": study}}).scaling["s"]


@pytest.mark.parametrize(
    ("rule", "rates"), [("none", [0.1, 0.1, 0.1]), ("linear", [0.1, 0.4, 1.6]), ("sqrt", [0.1, 0.2, 0.4])]
)
def test_the_learning_rate_follows_the_number_of_gpus_by_the_rule(rule, rates):
    study = study_of(lr_scaling=rule)
    assert [study.train_at(scale).lr for scale in study.scales] == pytest.approx(rates)


def test_without_a_rule_every_run_has_the_configuration_of_the_study():
    study = study_of()
    train = study.train.judged_by("val_accuracy")
    assert all(study.train_at(scale) == train for scale in study.scales)
    assert study.train_at("4x4/repeat-3") == train.model_copy(update={"seed": 2})


def test_a_plan_says_what_weak_scaling_does_to_batch_and_learning_rate():
    assert study_of().describe_step("4x4") == ", 1,024 images per step, lr 0.1 (lr_scaling: none)"
    assert study_of(lr_scaling="linear").describe_step("1x4") == ", 256 images per step, lr 0.4 (lr_scaling: linear)"
    assert study_of(mode="strong").describe_step("4x4") == ""


def test_a_rule_is_for_weak_scaling_of_a_training():
    with pytest.raises(ConfigError, match="lr_scaling is for weak scaling: strong scaling fixes the global batch"):
        study_of(mode="strong", lr_scaling="sqrt")
    with pytest.raises(ConfigError, match="lr_scaling: is for `train`, not for `script`: a script has its own"):
        check_config({"scaling": {"s": {"script": "t.py", "scales": ["1x1"], "lr_scaling": "sqrt"}}})
