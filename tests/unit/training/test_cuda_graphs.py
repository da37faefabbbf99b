"""Steps by a CUDA graph give the numbers of eager steps. Here, "replaying" runs what was captured again on the CPU."""

import logging
import warnings
from functools import partial

import pytest
import torch
from loops import LEARNER, SPEC, assert_equal_states, changed, start, train
from trainyard.config.sweep import Sweep
from trainyard.config.trials import expand
from trainyard.training.computation import cuda_graphs
from trainyard.training.computation.cuda_graphs import EAGER_STEPS, StepGraph, build_step_graph
from trainyard.training.loaders import ImageBatch
from trainyard.training.process_group import Group

MODELS = """
import torch
from trainyard.training.networks.models import SmallConvNet

class Trouble(SmallConvNet):
    def forward(self, images):
        if len(images) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(images)

def random(*, channels, classes):
    return torch.nn.Sequential(torch.nn.Dropout(0.3), SmallConvNet(channels=channels, classes=classes, width=4))

def large(*, channels, classes):
    return Trouble(channels=channels, classes=classes, width=4)
"""


class Gpu:
    """In place of a GPU: what a capture records runs on the CPU, when it is replayed."""

    replays = 0

    def capture(self, work):
        def replay():
            self.replays += 1
            work()

        return replay


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    gpu = Gpu()
    monkeypatch.setattr(cuda_graphs, "obstacle", lambda spec, group: None)
    monkeypatch.setattr(cuda_graphs, "capture", gpu.capture)
    monkeypatch.setattr(cuda_graphs, "find_waits", lambda run: (run(), []))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "graph_models.py").write_text(MODELS)
    return gpu


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulation": 3, "batch_size": 7, "clip_norm": 0.5},
        {"precision": "fp16", "optimizer": "adamw"},
        {"augment": {"crop_padding": 1, "flip": True}, "label_smoothing": 0.1},
        {"model": "graph_models:random", "model_args": {}, "ema_decay": 0.9},
        {
            "model": "resnet",
            "model_args": {"blocks": 1, "width": 4},
            "optimizer": "sgd",
            "schedule": {"name": "cosine"},
        },
    ],
)
def test_steps_by_a_graph_are_bit_identical_to_eager_steps(data, gpu, options):
    spec = changed(LEARNER, epochs=2, **options)
    eager, state = train(spec, data)
    graphed, graphed_state = train(spec, data, cuda_graphs=True)
    assert graphed == eager
    assert_equal_states(graphed_state, state)
    assert gpu.replays == 2 * (70 // (spec.batch_size * spec.accumulation)) - EAGER_STEPS


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), RuntimeError("not permitted\nmore")])
def test_steps_that_cannot_be_captured_are_eager_and_one_line_says_so(data, gpu, monkeypatch, caplog, error):
    def fail(work):
        raise error

    monkeypatch.setattr(cuda_graphs, "capture", fail)
    caplog.set_level(logging.INFO, "trainyard.training.computation.cuda_graphs")
    assert train(LEARNER, data, cuda_graphs=True)[0] == train(LEARNER, data)[0]
    assert caplog.messages == [f"no CUDA graphs: {str(error).splitlines()[0]}"]


def test_a_step_that_waits_for_the_gpu_is_not_captured(data, gpu, monkeypatch, caplog):
    monkeypatch.setattr(cuda_graphs, "find_waits", lambda run: (run(), ["own.py:3"]))
    caplog.set_level(logging.INFO, "trainyard.training.computation.cuda_graphs")
    assert train(LEARNER, data, cuda_graphs=True)[0] == train(LEARNER, data)[0]
    assert caplog.messages == ["no CUDA graphs: a step waits for the GPU in own.py:3"]
    assert gpu.replays == 0


def test_operations_that_wait_are_found_by_the_warnings_of_torch(monkeypatch):
    modes = [0]
    monkeypatch.setattr("torch.cuda.get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", modes.append)

    def run():
        assert modes[-1] == "warn"
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        return torch.ones(1)

    found, (place,) = cuda_graphs.find_waits(run)
    assert found == torch.ones(1)
    assert place.startswith("test_cuda_graphs.py:")
    assert modes == [0, "warn", 0]


def test_without_enough_memory_the_graph_is_given_up_with_the_first_halving(data, gpu):
    spec = changed(LEARNER, model="graph_models:large", model_args={}, epochs=2)
    trainer = start(spec, data, cuda_graphs=True)
    rows = list(trainer.epochs())
    assert (len(rows), trainer.batch.micro, gpu.replays) == (2, 4, 0)


def test_batches_of_another_shape_end_the_use_of_the_graph(gpu):
    def batch(size):
        return ImageBatch(torch.full((size, 2), size), torch.zeros(size), torch.zeros(size))

    graph = partial(StepGraph(), lambda batches: torch.stack([each.pixels.sum() for each in batches]))
    for _ in range(EAGER_STEPS + 2):
        assert graph([batch(4)]) == 32
    assert graph([batch(3)]) == 18
    assert graph([batch(4)]) == 32
    assert gpu.replays == 2


ONE_GPU = Group(rank=0, local_rank=0, world_size=1, device=torch.device("cuda", 0))
TWO_GPUS = Group(rank=0, local_rank=0, world_size=2, device=torch.device("cuda", 0))
CPU = Group(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("wanted", "options", "group", "captures"),
    [
        (False, {}, ONE_GPU, False),
        ("auto", {}, ONE_GPU, True),
        ("auto", {"model": "own:model"}, ONE_GPU, False),
        ("auto", {"loss": "own:loss"}, ONE_GPU, False),
        (True, {"model": "own:model"}, ONE_GPU, True),
        (True, {}, TWO_GPUS, False),
        (True, {}, CPU, False),
        (True, {"compile": True}, ONE_GPU, False),
        (True, {"activation_checkpointing": True}, ONE_GPU, False),
    ],
)
def test_which_trainings_are_captured(wanted, options, group, captures):
    graph = build_step_graph(changed(SPEC, **options), group, wanted=wanted)
    assert (graph is not None) == captures


def test_the_key_does_not_belong_to_the_identity_of_a_trial():
    plain = {"dataset": "digits", "grid": {"lr": [0.1, 0.2]}}
    names = [
        list(expand(Sweep.model_validate(plain | options)).by_name("digest"))
        for options in ({}, {"cuda_graphs": "auto"})
    ]
    assert names[0] == names[1]
