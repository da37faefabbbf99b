"""The pattern guessed for the metrics of a program: of common kinds of output, and of none."""

import pytest
from trainyard.config.user_programs import Metrics
from trainyard.programs.metric_patterns import PatternParser
from trainyard.programs.metric_rows import ReadingNotes, numeric_row
from trainyard.programs.pattern_guess import NoMetric, best_metric, find_decimal_comma, guess_pattern

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
        {"test_loss": 6.8, "test_acc_1": 0.4, "test_acc_5": 3.1},  # averages of the whole test, not of its last batch
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
    parser = PatternParser(metrics.compiled, ReadingNotes())
    for line in lines:
        parser.add_line(line)
    (row,) = parser.new_rows(final=True)
    assert numeric_row(row) == found


def test_the_pattern_of_a_line_matches_the_other_lines_of_its_kind():
    lines = [
        f"Epoch: [{number}]  loss {9 / number:8.4f} ({12 / number:6.2f})  test acc {number:5.1f}" for number in (1, 12)
    ]
    guess = guess_pattern(lines[:1])
    parser = PatternParser(Metrics(pattern=guess.pattern).compiled, ReadingNotes())
    parser.add_line(lines[1])
    assert parser.new_rows(final=True) == [{"epoch": "12", "loss": "0.7500", "test_acc": "12.0"}]


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


# Outputs in which something beside the metric looks like one, with the metric and the values that it has had.
DECOYS = {
    "a threshold": (
        ["epoch 1 IoU=0.50 score_thr=0.05 loss=1.9 mAP=0.21", "epoch 2 IoU=0.50 score_thr=0.05 loss=1.4 mAP=0.32"],
        "map",
        (0.21, 0.32),
    ),
    "a threshold in a line of its own": (
        ["loss 0.9", "IoU=0.50", "loss 0.8", "IoU=0.50", "loss 0.7", "IoU=0.50"], "loss", (0.9, 0.8, 0.7)
    ),
    "a target": (["acc 0.61 target_acc 0.90 lr 0.1", "acc 0.65 target_acc 0.90 lr 0.05"], "acc", (0.61, 0.65)),
    "the losses of a GAN": (
        ["d_loss: 0.61 g_loss: 1.23 fid: 120.5", "d_loss: 0.55 g_loss: 1.43 fid: 90.5"], "fid", (120.5, 90.5)
    ),
    "the losses of a GAN in other lines": (
        ["[D loss: 0.69] [G loss: 0.71]", "FID: 123.45", "[D loss: 0.59] [G loss: 0.81]", "FID: 98.12"],
        "fid",
        (123.45, 98.12),
    ),
    "the best value so far": (
        ["best val acc: 0.5, val acc: 0.5", "best val acc: 0.5, val acc: 0.4"], "val_acc", (0.5, 0.4)
    ),
    "the accuracy of the weights that it begins with": (
        ["resnet50 (acc 76.13)", "epoch 1 loss 0.9", "epoch 2 loss 0.8"], "loss", (0.9, 0.8)
    ),
    "a score that is always 1": (
        ["val_loss: 0.5 - val_acc: 1.0", "val_loss: 0.4 - val_acc: 1.0", "val_loss: 0.3 - val_acc: 1.0"],
        "val_loss",
        (0.5, 0.4, 0.3),
    ),
    "parts of a loss": (
        ["| approx_kl | 0.01 |", "| ep_rew_mean | 21.5 |", "| value_loss | 8 |",
         "| approx_kl | 0.02 |", "| ep_rew_mean | 22.5 |", "| value_loss | 7 |"],
        "ep_rew_mean",
        (21.5, 22.5),
    ),
    "a class": (
        ["epoch 1 loss 0.9", "class road IoU: 0.91", "class car IoU: 0.71", "mIoU: 0.81",
         "epoch 2 loss 0.8", "class road IoU: 0.92", "class car IoU: 0.73", "mIoU: 0.82"],
        "miou",
        (0.81, 0.82),
    ),
    "the scale of the loss": (
        [f"iteration {n}/ 3 | time per iteration (ms): 50{n}.1 | learning rate: 1.E-0{n} | lm loss: {9 / n:.6E} "
         "| loss scale: 1.0 | number of nan iterations:   0 |" for n in (1, 2, 3)],
        "lm_loss",
        (9.0, 4.5, 3.0),
    ),
    "the loss beside scores that have only the names of their data": (
        [f"Epoch: 00{n}, Loss: {2 / n:.4f}, Train: 0.{n + 4}, Val: 0.{n + 3}, Test: 0.{n + 2}" for n in (1, 2)],
        "val",
        (0.4, 0.5),
    ),
    "the loss of the training": (
        ["Training loss: 0.9", "Evaluation loss: 0.8", "Training loss: 0.7", "Evaluation loss: 0.6"],
        "evaluation_loss",
        (0.8, 0.6),
    ),
    "batches of PyTorch's ImageNet example": (
        [line for epoch in (1, 2) for line in (
            f"Epoch: [{epoch}][1/2]\tTime  0.1 ( 0.1)\tLoss 2.3e+00 (2.4e+00)\tAcc@1   5.00 ( 4{epoch}.00)",
            f"Epoch: [{epoch}][2/2]\tTime  0.1 ( 0.1)\tLoss 2.2e+00 (2.3e+00)\tAcc@1   7.00 ( 4{epoch}.50)",
            f"Test: [1/2]\tTime  0.1 ( 0.1)\tLoss 2.1e+00 (2.2e+00)\tAcc@1  9{epoch}.00 ( 9{epoch}.00)",
            f"Test: [2/2]\tTime  0.1 ( 0.1)\tLoss 2.0e+00 (2.1e+00)\tAcc@1  9{epoch}.10 ( 9{epoch}.10)",
            f"*   Acc@1 5{epoch}.250 Acc@5 70.250")],
        "acc_1",
        (51.25, 52.25),
    ),
    "batches of a training": (
        ["[1/2] loss 0.9 (0.8)", "[2/2] loss 0.7 (0.9)", "mean loss 0.8",
         "[1/2] loss 0.5 (0.6)", "[2/2] loss 0.4 (0.5)", "mean loss 0.6"],
        "mean_loss",
        (0.8, 0.6),
    ),
    "a line of batches": (
        ["Epoch: [0][1/2] Loss 2.5 (2.5) Acc@1 5.0 (5.0)", "Epoch: [0][2/2] Loss 2.1 (2.3) Acc@1 9.0 (7.0)"],
        "acc_1",
        (5.0, 7.0),
    ),
    "a standard deviation": (["test reward 9.5 (0.5)", "test reward 9.9 (0.4)"], "test_reward", (9.5, 9.9)),
    "an iteration": (
        [f"validation loss at iteration {n}000 | lm loss value: {9 / n:.6E}" for n in (1, 2)],
        "validation_lm_loss_value",
        (9.0, 4.5),
    ),
    "the accuracy of the training": (
        ["epoch 1 train acc 0.9", "Test: [1/2] acc 0.4 (0.4)", "Test: [2/2] acc 0.6 (0.5)",
         "epoch 2 train acc 0.95", "Test: [1/2] acc 0.5 (0.5)", "Test: [2/2] acc 0.7 (0.6)"],
        "test_acc",
        (0.4, 0.5, 0.5, 0.6),
    ),
    "the thresholds of average precisions": (
        ["epoch 1 loss 3.1", "Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.374",
         "epoch 2 loss 2.1", "Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.384"],
        "loss",
        (3.1, 2.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "metric", "values"), DECOYS.values(), ids=DECOYS)
def test_what_looks_like_a_metric_is_not_taken_for_one(lines, metric, values):
    guess = guess_pattern(lines)
    assert (guess.metric, guess.values) == (metric, values)
    parser = PatternParser(Metrics(pattern=guess.pattern, sample=guess.sample).compiled, ReadingNotes())
    for line in lines:
        parser.add_line(line)
    assert [numeric_row(row)[metric] for row in parser.new_rows(final=True)] == list(values), "and in no other line"


def test_numbers_in_quotes_behind_a_progress_bar_are_found():
    lines = [
        " 33%|###       | 40/120 [00:01<00:02, 41.2it/s]{'loss': '1.3', 'grad_norm': '2.1', 'epoch': '0.5'}",
        "{'eval_loss': '0.6667', 'eval_accuracy': '0.44', 'eval_runtime': '0.0412', 'epoch': '0.5'}",
        " 66%|######    | 80/120 [00:02<00:01, 41.2it/s]{'loss': '1.1', 'grad_norm': '2.0', 'epoch': '1'}",
        "{'eval_loss': '0.5', 'eval_accuracy': '0.66', 'eval_runtime': '0.0398', 'epoch': '1'}",
        "{'train_runtime': '1.23', 'train_samples_per_second': '975.6', 'train_loss': '0.9021', 'epoch': '1'}",
        "  eval_accuracy           =     0.6600",
    ]
    guess = guess_pattern(lines)
    parser = PatternParser(Metrics(pattern=guess.pattern, sample=guess.sample).compiled, ReadingNotes())
    for line in lines:
        parser.add_line(line)
    rows = list(map(numeric_row, parser.new_rows(final=True)))
    assert guess.metric == "eval_accuracy"
    assert rows == [
        {"eval_loss": 0.6667, "eval_accuracy": 0.44, "epoch": 0.5},
        {"eval_loss": 0.5, "eval_accuracy": 0.66, "epoch": 1},
    ]


def test_lines_of_epochs_tell_more_than_the_best_at_the_end():
    """They come one after the other, as those of batches do."""
    lines = [f"[Epoch {epoch}] loss: {1 / epoch:.2f}, val_acc: {epoch / 7:.2f}" for epoch in range(1, 5)]
    guess = guess_pattern([*lines, "Best val_acc: 0.57 at epoch 4", "wandb: val_acc 0.57"])
    assert guess.metric == "val_acc"
    assert guess.values == (0.14, 0.29, 0.43, 0.57)


def test_a_loss_that_is_not_a_number_is_no_part_of_the_next_name():
    guess = guess_pattern(["epoch 1 loss 0.5 val_acc 0.6", "epoch 2 loss nan val_acc 0.7"])
    assert (guess.metric, guess.values) == ("val_acc", (0.6, 0.7))


def test_a_pattern_does_not_find_other_lines_with_metrics():
    """A guess for the last kind of lines must not find `loss` in `aux loss`, or in the line of another phase."""
    lines = ["warmup epoch 1 loss 2.0 acc 0.9", "epoch 1 loss 1.5 acc 0.5", "epoch 2 loss 1.2 acc 0.6"]
    guess = guess_pattern([*lines, "epoch 3 loss 1.1 acc 0.7"])
    assert guess.values == (0.5, 0.6, 0.7)
    assert Metrics(pattern=guess.pattern).compiled[0].search(lines[0]) is None


def test_lines_of_averaged_weights_are_told_apart_from_those_of_the_model():
    line = "Test{}: [  9/9]  Time: 0.3 (0.3)  Acc@1:   0.5 (  {})"
    guess = guess_pattern([line.format(weights, n) for n in (1.5, 2.5, 3.5) for weights in ("", " (EMA)")])
    assert guess.values == (1.5, 2.5, 3.5)
    pattern = Metrics(pattern=guess.pattern).compiled[0]
    assert [bool(pattern.search(line.format(weights, 1.5))) for weights in ("", " (EMA)")].count(True) == 1


def test_a_line_after_the_first_of_many_batches_is_not_that_of_an_epoch():
    lines = [f"Test: [ 0/10] Acc@1   {n}.56 (  {n}.56) | * Acc@1 {n}.780 Acc@5 {n}.9" for n in range(3)]
    guess = guess_pattern([part for line in lines for part in line.split(" | ")])
    assert guess.values == (0.78, 1.78, 2.78)


def test_a_pattern_whose_numbers_would_not_be_read_is_not_guessed():
    rejected = NoMetric()
    line = "validation loss at iteration 9{} | lm loss PPL: {}.5"
    lines = [part for n in (9, 8, 7) for part in (f"iteration {n} | lm loss: {n}.1", line.format("", n))]
    lines += ["iteration 6 | lm loss: 6.1", line.format(" on validation set", 6), line.format(" on test set", 7)]
    assert guess_pattern(lines, rejected) is None
    assert "is of val and of test: let the pattern match the words before" in str(rejected)


def test_a_decimal_comma_is_said():
    lines = ["step 1/3 | loss: 3,2451 | tok/sec: 529,882", "step 2/3 | loss: 2,9000 | tok/sec: 531,002"]
    assert guess_pattern(lines) is None
    assert find_decimal_comma(lines) == "loss 3,2451"


def _bars(acc, *, batches):
    return [f"[==>...]  Step: 9ms | Loss: 2.1 | Acc: {acc + n}% (9/99)\b\b {n}/{batches}" for n in (1, batches)]


BLOCKS = {
    "bars of pytorch-cifar": [_bars(40, batches=3), _bars(20, batches=3)],
    "bars of different lengths": [_bars(40, batches=5), _bars(20, batches=3)],
    "summaries": [["[1/9] acc 0.5", "* acc 0.6"], ["[1/9] test", "* acc 0.5"]],
}


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_training_and_test_that_no_word_tells_apart_are_not_guessed_but_said(blocks):
    training, test = blocks
    rejected = NoMetric()
    output = [line for epoch in range(3) for line in (f"Epoch: {epoch}", *training, *test)]
    assert guess_pattern(output, rejected) is None
    assert "it prints acc twice per epoch" in str(rejected)


def test_bars_of_one_phase_are_guessed():
    output = [line for epoch in range(3) for line in (f"Epoch: {epoch}", *_bars(40 + epoch, batches=3))]
    assert guess_pattern(output).metric == "acc"


@pytest.mark.parametrize(
    "line", ["[1/3] Loss_D: {} Loss_G: {}", "value_loss={} policy_loss={}"], ids=["of a GAN", "of an actor"]
)
def test_parts_of_a_training_loss_are_not_guessed_but_said(line):
    rejected = NoMetric()
    assert guess_pattern([line.format(n, 9 - n) for n in range(3)], rejected) is None
    assert "only parts of a training loss" in str(rejected)
    assert best_metric(["losses/value_loss", "losses/policy_loss"], rejected := NoMetric()) == ""
    assert "losses/policy_loss, losses/value_loss" in str(rejected)
    assert best_metric(["cross_entropy", "losses/value_loss"]) == "cross_entropy"


def test_what_was_the_same_each_time_is_said():
    rejected = NoMetric()
    assert guess_pattern([f"epoch {n} target acc 0.9" for n in (1, 2, 3)], rejected) is None
    assert str(rejected) == "it reports no other metric than target_acc, which had the same value each time"


def test_the_metric_that_ranks_trials_is_of_held_out_data_and_rather_a_score():
    assert best_metric(["lr", "train_acc", "val_loss", "val_acc", "epoch"]) == "val_acc"
    assert best_metric(["epoch", "train_acc", "val_loss"]) == "val_loss"
    assert best_metric(["epoch", "step", "lr", "seconds"]) == ""


@pytest.mark.parametrize("line", ["Epoch [{:2d}/12] val_acc {}", "Epoch:{:2d}/12 val_acc {}"])
def test_a_pattern_from_padded_epochs_matches_those_with_more_digits(line):
    guess = guess_pattern([line.format(epoch, 0.9 + epoch / 1000) for epoch in range(1, 10)])
    (found,) = Metrics(pattern=guess.pattern).compiled
    assert found.search(line.format(100, 0.97))["epoch"] == "100"
