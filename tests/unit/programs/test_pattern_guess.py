"""The pattern guessed for the metrics of a program: of common kinds of output, and of none."""

import pytest
from trainyard.config.user_programs import Metrics
from trainyard.programs.metric_patterns import PatternParser
from trainyard.programs.metric_rows import numeric_row
from trainyard.programs.pattern_guess import best_metric, guess_pattern

# The kinds of output that people's scripts have, with the metric that ranks trials and what is found in the last line.
OUTPUTS = {
    "PyTorch's MNIST example": (
        ["Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.305", "Test set: Average loss: 0.0543, Accuracy: 9822/10000 (98%)"],
        "test_accuracy",
        {"test_average_loss": 0.0543, "test_accuracy": 0.98},
    ),
    "PyTorch's CIFAR tutorial": (
        ["[1,  2000] loss: 2.226", "Accuracy of the network on the 10000 test images: 54 %"],
        "test_accuracy",
        {"test_accuracy": 0.54},
    ),
    "a line per epoch": (
        ["starting", "epoch 1/5 | lr 1e-3 | loss 0.345 | val acc 91.2% | 3.5 s"],
        "val_acc",
        {"epoch": 1, "loss": 0.345, "val_acc": 0.912},
    ),
    "nanoGPT": (
        ["iter 250: loss 1.99, time 5000.12ms, mfu 1.2%", "step 250: train loss 1.9654, val loss 2.0589"],
        "val_loss",
        {"train_loss": 1.9654, "val_loss": 2.0589},
    ),
    "Hugging Face's Trainer": (
        ["{'eval_loss': 0.345, 'eval_accuracy': 0.81, 'eval_runtime': 1.2, 'epoch': 1.0}"],
        "eval_accuracy",
        {"eval_loss": 0.345, "eval_accuracy": 0.81, "epoch": 1},
    ),
    "Lightning's progress bar": (
        ["Epoch 3: 100%|████| 782/782 [00:10<00:00, 75.2it/s, v_num=3, train_loss=0.345, val_acc=0.812]"],
        "val_acc",
        {"epoch": 3, "train_loss": 0.345, "val_acc": 0.812},
    ),
    "timm": (
        ["Test: [   0/9]  Time: 0.3 (0.3)  Loss:   6.9 ( 6.8)  Acc@1:   0.5 (  0.4)  Acc@5:   3.1 (  3.1)"],
        "test_acc_1",
        {"test_loss": 6.9, "test_acc_1": 0.5},
    ),
    "a kind of data in parentheses": (["(val) #### loss: 0.3, acc: 0.9"], "val_acc", {"val_loss": 0.3, "val_acc": 0.9}),
    "two kinds of data in a line": (
        ["train.py: Ep[1/9] train: nll 0.91 acc 0.50 | dev: nll 0.80 acc 0.55"],
        "dev_acc",
        {"epoch": 1, "train_nll": 0.91, "train_acc": 0.5, "dev_nll": 0.8, "dev_acc": 0.55},
    ),
    "a logger of training": (
        ["- train - INFO - Train set: loss 0.2, acc 0.95", "- train - INFO - Test set: loss 0.31, acc 0.85"],
        "test_acc",
        {"test_loss": 0.31, "test_acc": 0.85},
    ),
    "a loss of an epoch": (
        ["epoch=3 train_loss_epoch=0.3 val_loss=0.4 ep: 7"],
        "val_loss",
        {"epoch": 3, "train_loss_epoch": 0.3, "val_loss": 0.4},
    ),
    "metrics with and without kinds of data": (
        ["val loss: 0.4, loss: 0.3, acc/ep: 0.5"],
        "val_loss",
        {"val_loss": 0.4, "loss": 0.3, "acc_ep": 0.5},
    ),
    "a log with times": (
        ["2026-11-26 01:04:37,123 INFO epoch=3 loss=1e-3 f1=0.91"],
        "f1",
        {"epoch": 3, "loss": 0.001, "f1": 0.91},
    ),
}


@pytest.mark.parametrize(("lines", "metric", "found"), OUTPUTS.values(), ids=OUTPUTS)
def test_the_metrics_of_a_common_kind_of_output_are_found(lines, metric, found):
    guess = guess_pattern(lines)
    assert (guess.metric, guess.sample) == (metric, lines[-1])
    metrics = Metrics(pattern=guess.pattern, sample=guess.sample)  # as in a config: it must match the sample
    parser = PatternParser(metrics.compiled)
    for line in lines:
        parser.add_line(line)
    (row,) = parser.take_rows(final=True)
    assert numeric_row(row) == found


def test_the_pattern_of_a_line_matches_the_other_lines_of_its_kind():
    lines = [
        f"Epoch: [{number}]  loss {9 / number:8.4f} ({12 / number:6.2f})  test acc {number:5.1f}" for number in (1, 12)
    ]
    guess = guess_pattern(lines[:1])
    parser = PatternParser(Metrics(pattern=guess.pattern).compiled)
    parser.add_line(lines[1])
    assert parser.take_rows(final=True) == [{"epoch": "12", "loss": "0.7500", "test_acc": "12.0"}]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello world 3",
        "finished in 3.5 s",
        "epoch 3",
        "loss: none yet",
        "cost 3 ms",
        "ep 3 epoch 4",
        "acc 0.9 (train) acc 0.8 (val)",
    ],
)
def test_a_line_without_a_measure_gives_no_pattern(line):
    assert guess_pattern([line]) is None


def test_the_metric_that_ranks_trials_is_of_held_out_data_and_rather_a_score():
    assert best_metric(["lr", "train_acc", "val_loss", "val_acc", "epoch"]) == "val_acc"
    assert best_metric(["epoch", "train_acc", "val_loss"]) == "val_loss"
    assert best_metric(["epoch", "step", "lr", "seconds"]) == ""
