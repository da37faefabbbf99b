"""Whether a program came to the end that it had planned, by what it printed last."""

import pytest
from trainyard.programs.progress import ProgressReader


def read(*lines):
    reader = ProgressReader()
    for line in lines:
        reader.add_line(line)
    return reader.progress


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ([" iteration     3/   10 | ms", " iteration     4/   10 | ms", "exiting"], "iteration 4 of 10"),
        (["Epoch 2/10", "1875/1875 [=====] - 5s - loss: 0.3", "Epoch 3/10", "1875/1875 [=====] - 5s"], "epoch 3 of 10"),
        (["Epoch [2/10], Step [100/600], Loss: 0.2", "Epoch [3/10], Step [600/600], Loss: 0.1"], "epoch 3 of 10"),
        (["[Epoch 0/2] [Batch 5/11]", "[Epoch 0/2] [Batch 10/11]"], "epoch 0 of 2"),
        (["step 200/1000 loss 0.5", "step 400/1000 loss 0.4"], "step 400 of 1000"),
        (["Iter(train) [ 100/400]", "Iter(train) [ 200/400]", "Iter(val) [50/50]"], "iter 200 of 400"),
        (["epochs:  20%|##  | 2/10 [00:02<00:08]", "epochs:  30%|###  | 3/10 [00:03<00:07]"], "epochs 3 of 10"),
        (["EarlyStopping()", "Epoch 2/10", "Epoch 3/10", "EarlyStopping counter: 1 out of 5"], "epoch 3 of 10"),
        (["update 1,000 of 20,000", "update 2,000 of 20,000", "Validation step 5/50"], "update 2000 of 20000"),
    ],
)  # fmt: skip
def test_a_counter_that_did_not_reach_its_total_is_not_complete(lines, last):
    progress = read(*lines)
    assert str(progress) == last
    assert not progress.may_be_complete


@pytest.mark.parametrize(
    "lines",
    [
        ["Epoch 9/10", "Epoch 10/10"],
        ["Epoch 8/10", "Epoch 9/10"],  # counted from 0
        ["step 980/1000", "step 990/1000"],  # printed every ten
        ["step 500/900"],
        ["Epoch 10/10 step 300/391 loss 0.1"],  # the last batches are not printed
        ["Epoch 6/100", "Epoch 7/100", "Epoch 7: early stopping"],
        ["[Epoch 0/1] [Batch 5/11] [G loss: 0.2]", "[Epoch 0/1] [Batch 10/11] [G loss: 0.1]"],
    ],
)
def test_a_counter_after_which_nothing_is_printed_may_be_complete(lines):
    assert read(*lines).may_be_complete


def test_a_counter_begins_at_0_if_its_first_number_is_0():
    assert read("Epoch [0/4], Step [0/100]", "Epoch [0/4] acc 0.5", "Epoch [3/4] acc 0.6").begins_at_0
    assert not read("Step [0/100]", "Epoch [1/4] acc 0.5", "Epoch [2/4] acc 0.6").begins_at_0


@pytest.mark.parametrize(
    "line",
    [
        "Test set: Average loss: 0.0273, Accuracy: 9915/10000 (99%)",
        "Train Epoch: 14 [59520/60000 (99%)] Loss: 0.02",
        "Epoch: [3][400/1000] Time 0.1",
        "eval step 3/50",
        "timestamp 3/10",
        f"step {'1' * 5000}/2",
    ],
)
def test_other_fractions_are_no_progress(line):
    assert read(line) is None
