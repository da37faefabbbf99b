"""Two ranks train as one, with torchrun and gloo. All cases run in a single launch, which takes seconds."""

import json
import os
import sys

import pytest
from loops import LEARNER, changed, numbers, start, train
from slurm_cluster.waiting import finished as run
from trainyard.training import trainer
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.trainer import Trainer
from yard import ROOT

SPEC = changed(LEARNER, optimizer="sgd", lr=0.05, batch_size=None, global_batch_size=16, epochs=3)
CASES = {
    "plain": {},
    "in parts": {"accumulation": 2},
    "clipped and smoothed": {"clip_norm": 0.1, "label_smoothing": 0.1},
    "augmented": {"augment": {"crop_padding": 2, "flip": True}},
    "recomputed": {"activation_checkpointing": True},
    "fine-tuned": {"freeze": ["0"], "lr_scale": {"*": 0.3, "8": 1}},
}

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

def build(*, channels, classes, kind):
    model = Trouble(channels=channels, classes=classes, width=8)
    model.kind = kind
    return model
"""

# Every rank runs this; rank 0 writes the results.
PROGRAM = """
import argparse, json, logging, shutil, sys, time
from pathlib import Path
import torch
from loops import changed, numbers
from test_ranks import CASES, SPEC
from trainyard.cli import command_line
from trainyard.training.checkpoints import CheckpointStore
from trainyard.data.staged import Staged
from trainyard.training.process_group import process_group
from trainyard.training.loaders import load_input_data
from trainyard.training.warmup import warm_up
from trainyard.training.sampler import batch_sizes
from trainyard.training.trainer import Diverged, Stopped, Trainer

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

        for name, values in CASES.items():
            found[name] = rows(start(changed(SPEC, **values)))
        warmed = start(SPEC)
        warm_up(warmed)
        found["warmed up"] = rows(warmed)
        found["compressed"] = rows(start(changed(SPEC, gradient_compression="bf16")))

        warned = []
        trainer_log = logging.getLogger("trainyard.training.trainer")
        trainer_log.addFilter(lambda record: warned.append(record.getMessage()) or True)
        rows(start(changed(SPEC, model="resnet", model_args={"blocks": 1, "width": 4}, sync_batchnorm=True, epochs=1)))
        found["warned"] = list(warned)

        try:
            rows(start(changed(SPEC, model="trouble:build", model_args={"kind": "nan"})))
        except Diverged as error:
            found["diverged"] = group.all_gather_object(str(error))

        greedy = start(changed(SPEC, model="trouble:build", model_args={"kind": "memory"}))
        probe = warm_up(greedy)
        found["exposed"] = group.all_gather_object(probe.exposed_comm_fraction)
        found["micro"] = group.all_gather_object(greedy.batch.micro)
        found["memory"] = rows(greedy)

        # Stopped within the second epoch by the clock of rank 0.
        store = CheckpointStore(folder / "by-two")
        stopped = start(SPEC, store=store)
        epochs = stopped.epochs()
        next(epochs)
        if group.is_main:
            stopped._deadline = time.time()
        try:
            next(epochs)
        except Stopped as error:
            found["stopped"] = group.all_gather_object(str(error))
        if group.is_main:
            shutil.copytree(folder / "by-two", folder / "by-two-stopped")
        go_on = start(SPEC, store=store)
        rows(go_on)
        found["resumed"] = [numbers(row) for row in go_on.history]
        from_one = start(SPEC, store=CheckpointStore(folder / "by-one"))
        rows(from_one)
        found["resumed from one"] = [numbers(row) for row in from_one.history]
        if group.is_main:
            (folder / "found.json").write_text(json.dumps(found))

command_line.run_program(main, argparse.Namespace(log_file=None))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder, staged, data):
    """The results of two ranks. They find a checkpoint of a single rank that stopped within its second epoch."""
    (folder / "trouble.py").write_text(MODELS)
    (folder / "program.py").write_text(PROGRAM)
    stop_within_second_epoch(start(SPEC, data, store=CheckpointStore(folder / "by-one")))
    paths = [folder, ROOT / "scripts", ROOT / "tests", ROOT / "tests/unit/training", ROOT / "tools"]
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir", str(folder),
                "--nproc-per-node", "2"]  # fmt: skip
    command = [*torchrun, "program.py", str(folder), str(staged.folder)]
    run(command, cwd=folder, env=environment)
    return json.loads((folder / "found.json").read_text())


def stop_within_second_epoch(running: Trainer) -> None:
    epochs = running.epochs()
    next(epochs)
    running._deadline = 0.0
    with pytest.raises(trainer.Stopped):
        next(epochs)


def assert_close(rows, same, tolerance=1e-5):
    """Equal up to the order of summation of the gradients."""
    assert len(rows) == len(same)
    assert all(row == pytest.approx(other, abs=tolerance) for row, other in zip(rows, same, strict=True))


def test_warming_up_changes_nothing(found):
    """Although DDP with a static graph records its first step."""
    assert found["warmed up"] == found["plain"]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one(found, data, case):
    """Also in validation, whose 23 images are not divisible by two."""
    assert_close(found[case], train(changed(SPEC, **CASES[case]), data)[0])


def test_compressed_gradients_differ_as_bf16_does(found, data):
    whole, _ = train(SPEC, data)
    assert_close(found["compressed"], whole, 0.05)
    assert found["compressed"] != found["plain"]


def test_a_warning_says_that_cpus_have_no_synchronized_batch_normalization(found):
    assert found["warned"] == ["sync_batchnorm needs GPUs: on these CPUs each rank normalizes its own images"]


def test_a_bad_loss_on_one_rank_stops_all_at_once(found):
    message = "the loss became NaN or infinite in epoch 2, step 2 of 4, on rank 1, before the update"
    assert len(found["diverged"]) == 2
    assert all(each.startswith(message) for each in found["diverged"])


def test_out_of_memory_on_one_rank_halves_the_micro_batch_of_all(found, data):
    assert found["micro"] == [2, 2]
    assert_close(found["memory"], train(SPEC, data)[0])


def test_the_exposed_communication_is_measured(found):
    assert found["exposed"][0] == found["exposed"][1]
    assert 0 <= found["exposed"][0] < 1


def test_the_clock_of_rank_0_stops_all_and_they_resume_bit_identically(found):
    assert len(set(found["stopped"])) == 1
    assert "in epoch 2 of 3, after step 1 of 4" in found["stopped"][0]
    assert found["resumed"] == found["plain"]


def test_a_training_resumes_on_another_number_of_ranks(found, data, folder):
    """With the same global batch and within an epoch: from two ranks to one, and from one to two."""
    whole, _ = train(SPEC, data)
    by_one = start(SPEC, data, store=CheckpointStore(folder / "by-two-stopped"))
    assert (len(by_one.history), by_one.state.progress.step) == (1, 1)
    list(by_one.epochs())
    assert_close([numbers(row) for row in by_one.history], whole)
    assert_close(found["resumed from one"], whole)
