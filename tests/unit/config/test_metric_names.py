"""The name of a metric says whether a smaller or a larger value is better."""

import pytest
from trainyard.config.metric_names import guess_mode

SMALLER = """
loss val_loss valLoss val_loss_ema my_loss loss_per_token error val_error_rate top1_error error_rate test_err rmse
val_rmse RMSE mse mae val_mae mape perplexity val_ppl wer val_wer cer val_per nll negative_log_likelihood fid
brier_score bits_per_byte seconds train_seconds latency_ms step_ms_p50 time_per_step kl_divergence
negative_sampling_loss false_negative_error
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
