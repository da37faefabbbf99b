"""The name of a metric says whether a smaller or a larger value is better."""

import pytest
from trainyard.config.metric_names import guess_mode, is_counter

SMALLER = """
loss val_loss valLoss val_loss_ema my_loss loss_per_token error val_error_rate top1_error error_rate test_err rmse
val_rmse RMSE mse mae val_mae mape perplexity val_ppl wer val_wer cer val_per nll negative_log_likelihood fid
brier_score bits_per_byte seconds train_seconds latency_ms step_ms_p50 time_per_step kl_divergence
negative_sampling_loss false_negative_error cross_entropy val_CrossEntropy ce val/bce cost
"""
LARGER = """
accuracy val_accuracy top5 f1 auc score iou map reward r2 power images_per_second tokens_per_seconds samples_per_ms
log_likelihood neg_log_loss neg_mean_squared_error summer lossless dice bleu sacer
per_class_accuracy mean_per_class_accuracy val_ms_ssim 1
"""


@pytest.mark.parametrize("name", SMALLER.split())
def test_a_smaller_value_is_better_for_errors_losses_and_times(name):
    assert guess_mode(name) == "min"


@pytest.mark.parametrize("name", LARGER.split())
def test_a_larger_value_is_better_for_scores_and_rates(name):
    assert guess_mode(name) == "max"


COUNTERS = """
step steps global_step trainer/global_step globalStep epoch num_epochs best_epoch iter n_iter iteration iterations
train/iteration it batch batch_idx samples_seen tokens_seen total_tokens time wall_time walltime train_time epoch_time
elapsed elapsed_seconds eta timestamp seconds train_seconds lr lr0 lr-Adam lr-SGD/pg1 learning_rate learningRate
base_lr train/learning_rate seed runtime eval_runtime train_runtime
"""
QUANTITIES = """
loss train_loss_step train_loss_epoch step_loss loss_per_step val_accuracy images_per_second it_per_second score rmse
time_to_failure episode_reward token_accuracy top1 lrap f1 latency_ms seeds_found batch_accuracy 1
rate
"""


@pytest.mark.parametrize("name", COUNTERS.split())
def test_what_counts_or_is_a_setting_does_not_rank_trials(name):
    assert is_counter(name)


@pytest.mark.parametrize("name", QUANTITIES.split())
def test_what_measures_something_may_rank_trials(name):
    assert not is_counter(name)
