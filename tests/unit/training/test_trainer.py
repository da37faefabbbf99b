"""The training loop: reproducible, also when it is interrupted or takes its steps in micro-batches."""

import gc
import json
import time
from dataclasses import fields

import pandas as pd
import pytest
import torch
from loops import LEARNER, SPEC, assert_close, assert_equal_states, changed, numbers, start, train
from trainyard.config.metric_names import EPOCH_METRICS
from trainyard.config.train import Schedule
from trainyard.scaling.speedups import scaling_table
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.epoch_metrics import EpochMetrics, epoch_line, time_left
from trainyard.training.summary import REPEATS, write_results
from trainyard.training.trainer import Diverged, TrainingInterrupted
from trainyard.training.untimed_steps import measure_steady_steps, warm_up
from trainyard.utils.errors import UserError


def test_another_seed_gives_another_training(data):
    assert train(SPEC, data)[0] != train(changed(SPEC, seed=1), data)[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(data, precision):
    assert train(changed(LEARNER, precision=precision), data)[0][-1]["val_accuracy"] > 0.9


def test_auto_is_full_precision_on_a_cpu(data):
    assert start(SPEC, data).precision == "fp32"
    assert train(changed(SPEC, precision="fp32"), data)[0] == train(SPEC, data)[0]


# ---- interrupted

RANDOM = """
import random
import numpy as np
import torch
from trainyard.training.models import SmallConvNet

class Noise(torch.nn.Module):
    # Normal numbers are drawn in pairs.
    def forward(self, images):
        return images + 0.1 * (random.gauss(0, 1) + np.random.randn()) if self.training else images

def build(*, channels, classes):
    dropout = torch.nn.Dropout(0.2 * random.random() + 0.2 * np.random.rand())
    return torch.nn.Sequential(dropout, Noise(), SmallConvNet(channels=channels, classes=classes, width=4))
"""


@pytest.fixture
def own_models(tmp_path, monkeypatch):
    """A folder on sys.path, for models of a user."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("stopped_after", [1, 3])
def test_an_interrupted_training_ends_bit_identical_to_an_uninterrupted_one(data, tmp_path, stopped_after):
    whole, whole_state = train(SPEC, data)
    store = CheckpointStore(tmp_path)
    train(SPEC, data, store=store, epochs=stopped_after)
    resumed, resumed_state = train(SPEC, data, store=store)
    assert resumed == whole
    assert_equal_states(resumed_state, whole_state)


def test_a_training_stopped_at_every_step_by_its_deadline_ends_bit_identical(data, own_models, tmp_path):
    """The random numbers of a model continue within an epoch, too: those of torch, numpy and Python."""
    (own_models / "with_noise.py").write_text(RANDOM)
    spec = changed(SPEC, model="with_noise:build", model_args=None, epochs=2, optimizer="adam")
    whole, whole_state = train(spec, data)
    store, runs = CheckpointStore(tmp_path / "checkpoints"), 0
    while True:
        training = start(spec, data, store=store, deadline=time.time())
        try:
            rows = [numbers(row) for row in training.epochs()]
        except TrainingInterrupted:
            runs += 1
            continue
        break
    assert runs == 2 * training.steps, "every run takes one step"
    assert len(rows) == 1, "the last one had only to validate"
    assert [numbers(row) for row in training.history] == whole
    assert_equal_states(training.module.state_dict(), whole_state)
    assert all(row.images_per_second > 0 and row.step_ms_p95 > 0 for row in training.history), "of all runs"


def test_a_deadline_without_a_store_only_stops(data):
    with pytest.raises(TrainingInterrupted, match="in epoch 1 of 4, after step 1 of 4"):
        list(start(SPEC, data, deadline=time.time()).epochs())


def test_a_checkpoint_of_another_global_batch_is_refused(data, tmp_path):
    train(SPEC, data, store=CheckpointStore(tmp_path), epochs=1)
    with pytest.raises(UserError, match=r"has 16 images per step, but this training has 8.*start anew, or give"):
        start(changed(SPEC, batch_size=8), data, store=CheckpointStore(tmp_path))


# ---- micro-batches


@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_accumulating_k_batches_is_one_batch_k_times_as_large(data, smoothing):
    """Without batch normalization, which depends on the size of the micro-batch."""
    spec = changed(LEARNER, optimizer="sgd", lr=0.05, label_smoothing=smoothing)
    whole, _ = train(spec, data)
    for parts in ({"batch_size": 4, "accumulation": 4}, {"batch_size": 8, "accumulation": 2}):
        assert_close(train(changed(spec, **parts), data)[0], whole)


def test_recomputed_activations_give_the_same_numbers(data):
    spec = changed(SPEC, model_args={"blocks": 3, "width": 4}, ema_decay=0.9)
    (plain, plain_state), (spared, spared_state) = (
        train(spec, data),
        train(changed(spec, activation_checkpointing=True), data),
    )
    assert plain == spared
    assert_equal_states(plain_state, spared_state)


NORMALIZED = """
import torch

class Block(torch.nn.Module):
    def __init__(self, channels, kind, options):
        super().__init__()
        self.convolution = torch.nn.Conv2d(channels, 3, 3, padding=1)
        self.norm = getattr(torch.nn, kind)(3, **options)

    def forward(self, images):
        return self.norm(self.convolution(images)).relu()

def build(*, channels, classes, kind, **options):
    blocks = [Block(channels if number == 0 else 3, kind, options) for number in range(2)]
    return torch.nn.Sequential(*blocks, torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, classes))
"""


@pytest.mark.parametrize(
    "norm",
    [
        {"kind": "InstanceNorm2d", "track_running_stats": True},
        {"kind": "BatchNorm2d", "momentum": None},
        {"kind": "SyncBatchNorm"},
    ],
    ids=lambda norm: norm["kind"],
)
def test_recomputed_activations_update_the_statistics_of_every_normalization_once(data, own_models, norm):
    (own_models / "normalized.py").write_text(NORMALIZED)
    spec = changed(SPEC, model="normalized:build", model_args=norm, epochs=2)
    (plain, plain_state), (spared, spared_state) = (
        train(each, data) for each in (spec, changed(spec, activation_checkpointing=True))
    )
    assert plain == spared
    assert_equal_states(plain_state, spared_state)


GREEDY = """
import torch
from trainyard.training.models import SmallConvNet

class Greedy(SmallConvNet):
    def forward(self, images):
        if self.training and len(images) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(images)

def build(*, channels, classes, limit):
    model = Greedy(channels=channels, classes=classes, width=4)
    model.limit = limit
    return model
"""


@pytest.mark.parametrize("warmed_up", [True, False])
def test_out_of_memory_halves_the_micro_batch_of_the_same_steps(data, own_models, warmed_up):
    (own_models / "greedy.py").write_text(GREEDY)
    spec = changed(LEARNER, model="greedy:build", model_args={"limit": 16}, optimizer="sgd", lr=0.05, batch_size=14)
    whole, _ = train(spec, data)
    halved = []
    training = start(changed(spec, model_args={"limit": 5}), data, on_halved=halved.append)
    if warmed_up:
        warm_up(training)
        assert (training.batch.micro, training.batch.accumulation) == (4, 4), "before the first step"
    rows = [numbers(row) for row in training.epochs()]
    assert [(batch.micro, batch.accumulation) for batch in halved] == [(7, 2), (4, 4)]
    assert_close(rows, whole)


def test_the_error_names_remedies_when_a_single_image_does_not_fit(data, own_models):
    (own_models / "greedy.py").write_text(GREEDY)
    spec = changed(LEARNER, model="greedy:build", model_args={"limit": 0})
    with pytest.raises(UserError, match=r"micro-batch of one image: use a smaller model, .*activation_checkpointing"):
        train(spec, data)


def test_warming_up_changes_nothing(data):
    """Also with batch normalization and dropout."""
    warmed = start(SPEC, data)
    probe = warm_up(warmed)
    assert probe.seconds > 0
    assert probe.exposed_comm_fraction is None, "one rank waits for no other"
    assert [numbers(row) for row in warmed.epochs()] == train(SPEC, data)[0]


# ---- a non-finite loss

POISONED = """
import torch
from trainyard.training.models import SmallConvNet

class Poisoned(SmallConvNet):
    calls = 0
    def forward(self, images):
        if self.training:
            self.calls += 1
        return super().forward(images) * (float("nan") if self.calls == 7 else 1.0)

def build(*, channels, classes):
    return Poisoned(channels=channels, classes=classes, width=4)
"""


def test_a_loss_that_is_not_a_number_stops_the_training_before_the_update(data, own_models):
    (own_models / "poisoned.py").write_text(POISONED)
    training = start(changed(LEARNER, model="poisoned:build", model_args=None), data)
    with pytest.raises(Diverged, match="in epoch 2, step 3 of 4, on rank 0, before the update"):
        list(training.epochs())
    assert all(parameter.isfinite().all() for parameter in training.module.parameters())


def test_a_diverging_training_is_stopped(data):
    with pytest.raises(Diverged, match="NaN or infinite in epoch 1"):
        train(changed(SPEC, lr=1e30, schedule=Schedule()), data)


def test_clipping_bounds_the_step(data):
    spec = changed(
        SPEC, optimizer="sgd", momentum=0, lr=1.0, clip_norm=1e-3, epochs=1, schedule=Schedule(), batch_size=70
    )
    training = start(spec, data)
    before = [parameter.detach().clone() for parameter in training.module.parameters()]
    list(training.epochs())
    moved = [now.detach() - then for now, then in zip(training.module.parameters(), before, strict=True)]
    assert torch.cat([each.flatten() for each in moved]).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_the_epoch_line_has_rate_losses_accuracies_and_throughput():
    row = EpochMetrics(3, 0.001, 5.149, 0.0216, 5.664, 0.0098, 704.9, 1.0, 1.0, 1.0, 0.0, 0.0)
    assert epoch_line(row, 3) == (
        "Epoch [3/3] LR: 0.001000 | Loss (train, val): 5.149, 5.664 | Accuracy (train, val): 2.16%, 0.98% | "
        "Throughput: 704.9 img/s"
    )


@pytest.mark.parametrize(("seconds", "text"), [(1.0, ""), (5.0, "about 10 s left"), (1800.0, "about 1 h 0 min left")])
def test_the_log_says_how_long_the_epochs_after_this_one_take(seconds, text):
    row = EpochMetrics(1, 0.001, 5.149, 0.0216, 5.664, 0.0098, 704.9, seconds, 1.0, 1.0, 0.0, 0.0)
    assert time_left(row, 3) == text


def test_the_metrics_that_a_config_may_name_are_those_of_an_epoch():
    assert tuple(field.name for field in fields(EpochMetrics)) == (*EPOCH_METRICS, "metrics")


class SlowStore(CheckpointStore):
    """Takes at least 0.05 s per checkpoint."""

    def save(self, *arguments, **options):
        time.sleep(0.05)
        return super().save(*arguments, **options)


def test_the_training_time_includes_the_time_that_it_waits_for_checkpoints(data, tmp_path):
    """Including that of previous runs. It waits for the last one, and for the one before if that is not complete."""
    first = start(SPEC, data, store=SlowStore(tmp_path / "checkpoints"))
    epochs = first.epochs()
    next(epochs)
    next(epochs)
    first.deadline = 0.0
    with pytest.raises(TrainingInterrupted):
        next(epochs)
    assert first.checkpoints.total_seconds >= 0.05
    training = start(SPEC, data, store=SlowStore(tmp_path / "checkpoints"))
    assert training.checkpoints.total_seconds >= 0.05
    list(training.epochs())
    assert training.checkpoints.total_seconds >= 2 * 0.05
    write_results(training, None, tmp_path, scale="1x1")
    summary, rows = json.loads((tmp_path / "summary.json").read_text()), pd.read_csv(tmp_path / "history.csv")
    assert summary["checkpoint_seconds"] == training.checkpoints.total_seconds
    assert summary["train_seconds"] == pytest.approx(rows["seconds"].sum() + training.checkpoints.total_seconds)
    table = scaling_table({"1x1": [tmp_path]}, mode="weak", gpu_hour=2.0).iloc[0]
    assert table["train_seconds"] == summary["train_seconds"]
    assert table["checkpoint_seconds"] == summary["checkpoint_seconds"]


def test_garbage_is_collected_at_the_same_steps_on_all_ranks(data):
    """Python's own collections come by the number of objects: each would pause another rank, for which all wait."""
    training, steps = start(changed(SPEC, batch_size=2, epochs=2), data), []

    def note(phase, info):
        if phase == "start" and gc.isenabled() is False:
            steps.append((training.state.progress.step, info["generation"]))

    gc.callbacks.append(note)
    try:
        for _ in training.epochs():
            assert gc.isenabled()
    finally:
        gc.callbacks.remove(note)
    assert steps == [(10, 1), (20, 1), (30, 1)] * 2


def test_garbage_is_collected_before_a_micro_batch_is_halved(data, monkeypatch):
    training, calls = start(SPEC, data), []
    monkeypatch.setattr(gc, "collect", lambda *generation: calls.append((generation, training.batch.micro)))
    training.halve_micro_batch()
    assert calls == [((), 16)]


def test_the_start_of_an_epoch_is_a_part_of_it(data):
    training = start(changed(SPEC, epochs=3), data)
    list(training.epochs())
    assert all(0 < row.epoch_start_seconds < row.seconds for row in training.history)


@pytest.mark.parametrize("schedule", ["cosine", "onecycle"])  # the second one refuses more steps than it has
def test_a_short_training_repeats_batches_to_measure_its_throughput(data, tmp_path, schedule):
    spec = changed(SPEC, epochs=1, schedule=Schedule(name=schedule))
    whole, _ = train(spec, data)
    training = start(spec, data, store=CheckpointStore(tmp_path / "checkpoints"))
    list(training.epochs())
    before = CheckpointStore(tmp_path / "checkpoints").latest()["module"]
    steady = measure_steady_steps(training)
    assert steady.steps >= 50
    assert 0 < steady.step_ms_p50 <= steady.step_ms_p95
    assert [numbers(row) for row in training.history] == whole
    assert_equal_states(CheckpointStore(tmp_path / "checkpoints").latest()["module"], before)
    write_results(training, None, tmp_path, scale="1x1", steady=steady)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["images_per_second"] == steady.images_per_second
    assert (summary["measured_steps"], summary["measured_in"]) == (steady.steps, REPEATS)
    assert summary["program"] == "one process, without DDP"
    assert len(pd.read_csv(tmp_path / "history.csv")) == 1


def test_repeated_batches_that_do_not_fit_the_memory_do_not_fail_a_complete_training(data):
    training = start(changed(SPEC, epochs=1), data)
    list(training.epochs())

    def fail_once(module, images):
        hook.remove()
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = training.module.register_forward_pre_hook(fail_once)
    assert measure_steady_steps(training).steps >= 50
    assert training.batch.accumulation == 2


def test_a_training_is_not_repeated_if_it_had_enough_steps_or_must_stop(data, tmp_path):
    long = start(changed(SPEC, epochs=15), data)
    list(long.epochs())
    assert measure_steady_steps(long) is None
    stopped, diverging = (start(changed(SPEC, epochs=1), data) for _ in range(2))
    for each in (stopped, diverging):
        list(each.epochs())
    stopped.stop_request.make()
    diverging.module.register_forward_hook(lambda module, images, output: output * float("nan"))
    assert measure_steady_steps(stopped) is None
    assert measure_steady_steps(diverging) is None
    write_results(stopped, None, tmp_path, scale="1x1")
    assert json.loads((tmp_path / "summary.json").read_text())["measured_in"] == "the training"


def test_factors_of_learning_rates_find_parameters_in_checkpointed_blocks(data):
    spec = changed(SPEC, lr_scale={"3.conv1": 0.5}, activation_checkpointing=True)
    assert [group["lr_scale"] for group in start(spec, data).state.optimizer.param_groups] == [1.0, 0.5]
