"""Two ranks train as one, with torchrun and gloo. All cases run in a single launch, which takes seconds."""

import json
import os
import sys

import pytest
from loops import LEARNER, assert_close, changed, load_images, numbers, start, stop_within_second_epoch, train
from project import ROOT
from slurm_cluster.waiting import finished as run
from trainyard.config.datasets import Synthetic
from trainyard.config.train import Training
from trainyard.data.staging import stage
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.process_group import Group
from trainyard.training.running_statistics import other_buffers

SPEC = changed(LEARNER, optimizer="sgd", lr=0.05, batch_size=16, epochs=3)
NORMALIZED = changed(SPEC, model="resnet", model_args={"blocks": 1, "width": 4}, epochs=2)
CASES = {
    "plain": {},
    "in parts": {"accumulation": 2},
    "clipped and smoothed": {"clip_norm": 0.1, "label_smoothing": 0.1},
    "augmented": {"augment": {"crop_padding": 2, "flip": True}},
    "cropped and resized": {"augment": {"resized_crop": 0.3}},
    "recomputed": {"activation_checkpointing": True},
    "fine-tuned": {"freeze": ["0"], "lr_scale": {"*": 0.3, "8": 1}},
    "averaged and measured": {"ema_decay": 0.9, "metrics": ["top5_accuracy"]},
    "measured by torchmetrics": {
        "metrics": {
            "f1": "torchmetrics.classification:MulticlassF1Score",
            "auroc": "torchmetrics.classification:MulticlassAUROC",
            "top5": "top5_accuracy",
        }
    },
    "out of patience": {"lr": 1e-30, "patience": 1},  # nothing is learned
}
AVERAGED = changed(NORMALIZED, ema_decay=0.7)
IN_PARTS = changed(SPEC, accumulation=2, activation_checkpointing=True)

MODELS = """
import os
import torch
from trainyard.training.models import SmallConvNet

class Trouble(SmallConvNet):
    calls = 0
    def forward(self, images):
        if self.training and os.environ["RANK"] == "1":
            self.calls += 1
            if self.kind == "memory" and len(images) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            if self.kind == "nan" and self.calls == 6:
                return super().forward(images) * float("inf")
        return super().forward(images)

class Counter(SmallConvNet):
    # Counts forward passes on rank 0, and another number on other ranks.
    def __init__(self, **options):
        super().__init__(**options)
        self.register_buffer("count", torch.zeros(()))
    def forward(self, images):
        if self.training:
            self.count += 1 if os.environ["RANK"] == "0" else 100
        return super().forward(images)

class Smoothed(torch.nn.Module):
    # Scales the loss by the average of earlier ones, on each rank by its own.
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.ones(()))
    def forward(self, outputs, targets):
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        self.average.lerp_(loss.detach(), 0.1)
        return loss / self.average

class NormalizedCounter(torch.nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.norm, self.model = torch.nn.BatchNorm2d(channels), counter(channels=channels, classes=classes)
        self.seen = []
    def forward(self, images):
        self.seen.append(float(self.norm.running_mean.sum()))
        return self.model(self.norm(images))

def counter(*, channels, classes):
    return Counter(channels=channels, classes=classes, width=4)

def build(*, channels, classes, kind):
    model = Trouble(channels=channels, classes=classes, width=8)
    model.kind = kind
    return model
"""

# Not all parameters take part in a step: a layer never does, or only in every other step.
MODELS += """
class Skipping(torch.nn.Module):
    calls = 0
    def __init__(self, channels, classes, kind):
        super().__init__()
        self.model, self.extra = SmallConvNet(channels=channels, classes=classes, width=8), torch.nn.Linear(10, 10)
        self.kind = kind
    def forward(self, images):
        outputs = self.model(images)
        self.calls += self.training
        return outputs + self.extra(outputs) if self.kind == "sometimes" and self.calls % 2 else outputs
"""
SKIPPING = {kind: changed(SPEC, model="trouble:Skipping", model_args={"kind": kind}) for kind in ("never", "sometimes")}

SMOOTHED = changed(SPEC, loss="trouble:Smoothed")

# Every rank runs this; rank 0 writes the results.
PROGRAM = """
import argparse, json, logging, shutil, sys, time, warnings
from functools import partial
from pathlib import Path
import torch
from loops import changed, numbers
from test_ranks import AVERAGED, CASES, IN_PARTS, NORMALIZED, SKIPPING, SMOOTHED, SPEC
from trainyard.cli import command_line
from trainyard.training.checkpoints import CheckpointStore
from trainyard.data.staged import Staged
from trainyard.training.process_group import process_group
from trainyard.training.loaders import load_input_data
from trainyard.training import untimed_steps
from trainyard.training.untimed_steps import warm_up
from trainyard.training.running_statistics import reduce_buffers
from trainyard.training.sampler import batch_sizes
from trainyard.training.trainer import Diverged, TrainingInterrupted, Trainer
from trainyard.scaling.rank import _explaining_unused_parameters
from trainyard.utils.errors import UserError

def stop_within_second_epoch(running, group, look=str):
    # What `look` makes of the error on all ranks when the clock of rank 0 stops a training: by default, its message.
    epochs = running.epochs()
    next(epochs)
    if group.is_main:
        running.deadline = time.time()
    try:
        next(epochs)
    except TrainingInterrupted as error:
        return group.all_gather_object(look(error))

class SlowStore(CheckpointStore):
    def save(self, *arguments, **options):
        time.sleep(1)
        return super().save(*arguments, **options)

def main(arguments):
    folder, found = Path(sys.argv[1]), {}
    torch.set_num_threads(1)
    with process_group() as group:
        data = load_input_data(Staged(Path(sys.argv[2])), group.device)

        def start(spec, **options):
            batch = batch_sizes(spec, world_size=group.world_size, mode="strong")
            return Trainer(spec, data, group, batch=batch, **options)

        def rows(training):
            return [numbers(row) for row in training.epochs()]

        def all_rows(resumed):
            rows(resumed)
            return [numbers(row) for row in resumed.history]

        for name, values in CASES.items():
            found[name] = rows(start(changed(SPEC, **values)))
        warmed = start(SPEC)
        warm_up(warmed)
        found["orders its buckets"] = group.all_gather_object(warmed.model.reducer._rebuild_buckets())
        found["warmed up"] = rows(warmed)

        gray = load_input_data(Staged(Path(sys.argv[3])), group.device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batch = batch_sizes(SPEC, world_size=group.world_size, mode="strong")
            found["gray"] = [numbers(row) for row in Trainer(SPEC, gray, group, batch=batch).epochs()]
        found["strides"] = group.all_gather_object([str(each.message) for each in caught])

        # Each rank normalizes its own images.
        store = CheckpointStore(folder / "normalized")
        normalized = start(NORMALIZED, store=store)
        found["normalized"] = rows(normalized)
        found["broadcasts"] = normalized.model.will_sync_module_buffers()
        group.all_gather_object(None)  # rank 0 has written the last checkpoint
        saved = store.latest()["module"]
        mine = normalized.module.state_dict()
        equal = all(torch.equal(mine[name], saved[name]) for name in saved)
        found["as saved"] = group.all_gather_object(equal)
        tracked = [int(value) for name, value in mine.items() if name.endswith("num_batches_tracked")]
        found["tracked"] = group.all_gather_object(tracked)
        stop_within_second_epoch(start(NORMALIZED, store=CheckpointStore(folder / "norm")), group)
        found["normalized, resumed"] = all_rows(start(NORMALIZED, store=CheckpointStore(folder / "norm")))
        found["averaged"] = rows(start(AVERAGED, store=CheckpointStore(folder / "averaged")))
        stop_within_second_epoch(start(AVERAGED, store=CheckpointStore(folder / "avg")), group)
        found["averaged, resumed"] = all_rows(start(AVERAGED, store=CheckpointStore(folder / "avg")))

        # Statistics of two halves of the same numbers, which differ in mean and variance.
        norm = torch.nn.BatchNorm1d(2, momentum=1.0)
        everything = torch.randn(20000, 2, generator=torch.Generator().manual_seed(0))
        everything[10000:] = 3 + 2 * everything[10000:]
        norm(everything.chunk(2)[group.rank])
        reduce_buffers(norm, group)
        once = norm.state_dict()["running_var"].clone()
        reduce_buffers(norm, group)
        found["unchanged"] = torch.equal(once, norm.running_var)
        found["pooled"] = [norm.running_mean.tolist(), norm.running_var.tolist()]
        found["expected"] = [everything.mean(0).tolist(), everything.var(0).tolist()]

        counting = start(changed(SPEC, model="trouble:counter", model_args=None, epochs=1))
        rows(counting)
        found["counts"] = group.all_gather_object(float(counting.module.count))

        both = start(changed(SPEC, model="trouble:NormalizedCounter", model_args=None, epochs=1))
        rows(both)
        found["counts of a normalized model"] = group.all_gather_object(float(both.module.model.count))
        found["its statistics"] = group.all_gather_object(both.module.seen[:4])

        found["smoothed"] = rows(start(SMOOTHED))
        warmed = start(SMOOTHED)
        warm_up(warmed)
        found["smoothed, warmed up"] = rows(warmed)
        stop_within_second_epoch(start(SMOOTHED, store=CheckpointStore(folder / "smooth")), group)
        found["smoothed, resumed"] = all_rows(start(SMOOTHED, store=CheckpointStore(folder / "smooth")))

        try:
            rows(start(changed(SPEC, model="trouble:build", model_args={"kind": "nan"})))
        except Diverged as error:
            found["diverged"] = group.all_gather_object(str(error))

        greedy = start(changed(SPEC, model="trouble:build", model_args={"kind": "memory"}))
        probe = warm_up(greedy)
        found["exposed"] = group.all_gather_object(probe.exposed_comm_fraction)
        found["micro"] = group.all_gather_object(greedy.batch.micro)
        found["memory"] = rows(greedy)
        steady = untimed_steps.measure_steady_steps(greedy)
        found["steady steps"] = group.all_gather_object(steady.steps)

        skipping = start(SKIPPING["never"])
        warm_up(skipping)
        found["never used"] = rows(skipping)
        found["sometimes used"] = rows(start(SKIPPING["sometimes"], ddp={"find_unused_parameters": True}))
        try:
            with _explaining_unused_parameters():
                warm_up(start(SKIPPING["sometimes"]))
        except UserError as error:
            found["unused"] = group.all_gather_object(str(error))

        torch.compile = partial(torch.compile, backend="aot_eager")  # generates no kernels
        compiled = start(changed(IN_PARTS, compile=True))
        warm_up(compiled)
        found["compiled"] = rows(compiled)

        # Memory runs out before the forward pass, which begins with collectives if the model has buffers.
        full = start(changed(SPEC, model="resnet", model_args={"blocks": 1, "width": 4}))
        fits, calls = untimed_steps._pass, []
        def run_out(*arguments):
            calls.append(1)
            if len(calls) == 1 and not group.is_main:
                raise torch.OutOfMemoryError("CUDA out of memory")
            fits(*arguments)
        untimed_steps._pass = run_out
        warm_up(full)
        untimed_steps._pass = fits
        found["micro without memory for images"] = group.all_gather_object(full.batch.micro)

        # SyncBatchNorm refuses to synchronize on CPUs, which shows that it does not. (DDP refuses to wrap it there.)
        synchronized = start(changed(SPEC, model="trouble:build", model_args={"kind": "memory"}))
        synchronized.module = torch.nn.Sequential(synchronized.module, torch.nn.SyncBatchNorm(data.classes))
        tries = [untimed_steps._fits(synchronized)]
        synchronized.batch = synchronized.batch.halved().halved()
        tries.append(untimed_steps._fits(synchronized))
        found["fits with SyncBatchNorm"] = group.all_gather_object(tries)
        try:
            untimed_steps._pass(synchronized, synchronized.module)
        except ValueError as error:
            found["synchronizes again"] = str(error)

        store = CheckpointStore(folder / "by-two")
        found["stopped"] = stop_within_second_epoch(start(SPEC, store=store), group)
        if group.is_main:
            shutil.copytree(folder / "by-two", folder / "by-two-stopped")
        found["resumed"] = all_rows(start(SPEC, store=store))
        slow = SlowStore(folder / "slow")
        is_written = lambda _: any(slow.folder.glob("epoch-0001-step-000001.*.pt"))
        found["written before a rank ends"] = stop_within_second_epoch(start(SPEC, store=slow), group, is_written)
        signalled = start(SPEC)
        signalled.stop_request.is_made = not group.is_main
        try:
            rows(signalled)
        except TrainingInterrupted as error:
            found["signalled"] = group.all_gather_object([str(error), error.is_by_signal])
        found["resumed from one"] = all_rows(start(SPEC, store=CheckpointStore(folder / "by-one")))
        if group.is_main:
            (folder / "found.json").write_text(json.dumps(found))

command_line.run_program(main, argparse.Namespace(log_file=None))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture
def importable(folder, monkeypatch):
    """The models of the ranks, in this process."""
    monkeypatch.syspath_prepend(folder)


@pytest.fixture(scope="module")
def gray(folder):
    """The same number of images, in gray."""
    source = Synthetic(source="synthetic", images=70, val_images=23, height=8, width=8, channels=1)
    return stage(source, folder / "gray")


@pytest.fixture(scope="module")
def found(folder, staged, gray, data):
    """The results of two ranks. They find a checkpoint of a single rank that stopped within its second epoch."""
    (folder / "trouble.py").write_text(MODELS)
    (folder / "program.py").write_text(PROGRAM)
    stop_within_second_epoch(start(SPEC, data, store=CheckpointStore(folder / "by-one")))
    paths = [folder, ROOT / "scripts", ROOT / "tests", ROOT / "tests/integration/training", ROOT / "tools"]
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir", str(folder),
                "--nproc-per-node", "2"]  # fmt: skip
    command = [*torchrun, "program.py", str(folder), str(staged.folder), str(gray.folder)]
    run(command, cwd=folder, env=environment)
    return json.loads((folder / "found.json").read_text())


def test_images_with_one_channel_train_without_a_warning_about_strides(found, gray):
    assert found["strides"] == [[], []]
    assert_close(found["gray"], train(SPEC, load_images(gray))[0])


def test_warming_up_changes_nothing(found):
    """Although DDP with a static graph records its first step."""
    assert found["warmed up"] == found["plain"]


def test_the_buckets_of_gradients_have_their_order_before_the_first_step(found):
    """DDP would order them after it, and the sum of three ranks or more depends on the order in its last bits: a
    training would not resume bit-identically.
    """
    assert found["orders its buckets"] == [True, True]


def test_all_ranks_stop_in_the_same_epoch_when_their_patience_ends(found):
    assert len(found["out of patience"]) == 2 < SPEC.epochs


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one(found, data, case):
    """Also in validation, whose 23 images are not divisible by two."""
    assert_close(found[case], train(changed(SPEC, **CASES[case]), data, mode="strong")[0])


def test_two_compiled_ranks_are_one(found, data):
    """With accumulated gradients and recomputed activations."""
    assert_close(found["compiled"], train(IN_PARTS, data, mode="strong")[0])


def test_parameters_that_no_step_uses_are_found(found, data, importable):
    """The warm-up finds them; without that, DDP fails in the second step."""
    assert_close(found["never used"], train(SKIPPING["never"], data)[0])


def test_parameters_that_some_steps_do_not_use_need_a_key(found, data, importable):
    assert_close(found["sometimes used"], train(SKIPPING["sometimes"], data)[0])
    assert len(found["unused"]) == 2
    assert all("set `ddp: {find_unused_parameters: true}`" in each for each in found["unused"])


@pytest.mark.parametrize(("name", "spec"), [("normalized", NORMALIZED), ("averaged", AVERAGED)])
def test_the_validation_of_all_ranks_is_that_of_the_checkpoint(found, data, folder, name, spec):
    """Although each rank has normalized its own images."""
    assert found["as saved"] == [True, True]
    checked = start(spec, data, store=CheckpointStore(folder / name))
    loss, correct, images = checked.validate().tolist()
    assert loss / images == pytest.approx(found[name][-1]["val_loss"], abs=1e-6)
    assert correct / images == pytest.approx(found[name][-1]["val_accuracy"])


def test_all_ranks_have_counted_the_same_batches(found):
    assert found["tracked"] == [[8, 8, 8]] * 2, "of two epochs of four steps, in three layers"


def test_running_statistics_are_those_of_all_images(found):
    """The pooled variance includes the difference of the means."""
    for pooled, expected in zip(found["pooled"], found["expected"], strict=True):
        assert pooled == pytest.approx(expected, rel=1e-3)
    assert found["unchanged"], "statistics that are equal on all ranks"


def test_running_statistics_are_not_broadcast_in_each_step(found):
    assert not found["broadcasts"]


def test_constants_of_torchvision_models_are_not_broadcast_in_each_step(data, monkeypatch):
    """Those of attention, for which DDP would broadcast running statistics, too."""
    given = {}
    monkeypatch.setattr(Group, "wrap", lambda group, model, **options: given.update(options) or model)
    training = start(Training(model="swin_t", batch_size=16), data)
    assert other_buffers(training.module)
    assert not given["synced_buffers"]


def test_other_buffers_of_a_model_are_those_of_rank_0(found):
    """In each forward pass, as in DDP: 100 of another rank would otherwise have been added in each of four steps."""
    assert found["counts"] == [4.0, 4.0]


def test_ranks_have_their_own_running_statistics_though_other_buffers_are_those_of_rank_0(found):
    """The same as a model that has no other buffers."""
    assert found["counts of a normalized model"] == [4.0, 4.0]
    mine, others = found["its statistics"]
    assert mine[0] == others[0]
    assert all(one != other for one, other in zip(mine[1:], others[1:], strict=True))


def test_an_own_loss_resumes_with_the_buffers_of_each_rank(found):
    assert found["smoothed, resumed"] == found["smoothed"] == found["smoothed, warmed up"]
    assert found["smoothed"] != found["plain"]


def test_a_normalized_training_resumes_within_an_epoch_bit_identically(found):
    """Each rank with its own statistics."""
    assert found["normalized, resumed"] == found["normalized"]
    assert found["averaged, resumed"] == found["averaged"]


def test_a_bad_loss_on_one_rank_stops_all_at_once(found):
    message = "the loss became NaN or infinite in epoch 2, step 2 of 4, on rank 1, before the update"
    assert len(found["diverged"]) == 2
    assert all(each.startswith(message) for each in found["diverged"])


def test_out_of_memory_on_one_rank_halves_the_micro_batch_of_all(found, data):
    assert found["micro"] == [2, 2]
    assert_close(found["memory"], train(SPEC, data)[0])


def test_the_probe_for_memory_has_no_collectives(found):
    """A rank without memory would not take part in them."""
    assert found["micro without memory for images"] == [4, 4]
    assert found["fits with SyncBatchNorm"] == [[False, True]] * 2
    assert "expected input tensor to be on GPU" in found["synchronizes again"]


def test_the_exposed_communication_is_measured(found):
    assert found["exposed"][0] == found["exposed"][1]
    assert 0 <= found["exposed"][0] < 1


def test_ranks_take_the_same_number_of_further_steps_to_measure_their_throughput(found):
    assert found["steady steps"] == [50, 50], "in whole epochs of 4 steps, after 10 that do not count"


def test_the_clock_of_rank_0_stops_all_and_they_resume_bit_identically(found):
    assert len(set(found["stopped"])) == 1
    assert "in epoch 2 of 3, after step 1 of 4" in found["stopped"][0]
    assert found["resumed"] == found["plain"]


def test_all_ranks_name_the_rank_that_a_signal_has_told_to_stop(found):
    """A rank that is not told would take it for the end of the walltime, and the job would be submitted again."""
    assert found["signalled"] == [["stopped by a signal to rank 1, in epoch 1 of 3, after step 1 of 4", True]] * 2
    assert "before the end of the walltime" in found["stopped"][0]


def test_no_rank_ends_before_rank_0_has_written_the_checkpoint_of_a_stop(found):
    """torchrun kills the other ranks of a node 30 s after one has ended, and srun all ranks of the other nodes."""
    assert found["written before a rank ends"] == [True, True]


def test_a_training_resumes_on_another_number_of_ranks(found, data, folder):
    """With the same global batch and within an epoch: from two ranks to one, and from one to two."""
    whole, _ = train(SPEC, data)
    by_one = start(SPEC, data, store=CheckpointStore(folder / "by-two-stopped"))
    assert (len(by_one.history), by_one.state.progress.step) == (1, 1)
    list(by_one.epochs())
    assert_close([numbers(row) for row in by_one.history], whole)
    assert_close(found["resumed from one"], whole)
