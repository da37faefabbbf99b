"""Deterministic kernels, and the fastest ones: what torch is told. Only a GPU shows what it then does."""

import os

import pytest
import torch
from loops import SPEC, assert_equal_states, changed, start, train
from trainyard.config.train import Train
from trainyard.training import numerics, trainer
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.loss_and_metrics import Objective
from trainyard.utils.errors import UserError

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.delenv(numerics.CUBLAS_VARIABLE, raising=False)
    yield
    numerics.choose_kernels(Train(), CPU)
    os.environ.pop(numerics.CUBLAS_VARIABLE, None)


def settings() -> tuple[bool, bool, bool, str | None]:
    cudnn = torch.backends.cudnn
    variable = os.environ.get(numerics.CUBLAS_VARIABLE)
    return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark, variable


def test_each_trial_has_its_own_setting(data):
    """Whatever the trial before has set. The workspace of cuBLAS, which is read once, stays."""
    start(SPEC, data)
    assert settings() == (False, False, False, None)
    start(changed(SPEC, deterministic=True), data)
    assert settings() == (True, True, False, ":4096:8")
    start(SPEC, data)
    assert settings() == (False, False, False, ":4096:8")


def test_own_code_is_tried_in_the_setting_of_its_trial(data, monkeypatch):
    """A loss may call cuBLAS, too."""
    tried = []

    class Noting(Objective):
        def __init__(self, *given, **options):
            tried.append(settings())
            super().__init__(*given, **options)

    monkeypatch.setattr(trainer, "Objective", Noting)
    for deterministic in (True, False):
        start(changed(SPEC, deterministic=deterministic), data)
    assert tried == [(True, True, False, ":4096:8"), (False, False, False, ":4096:8")]


def test_new_tensors_are_not_filled_first(data):
    start(changed(SPEC, deterministic=True), data)
    assert torch.are_deterministic_algorithms_enabled()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.empty(8)
    assert not [event.key for event in profile.key_averages() if "fill" in event.key]


def test_a_workspace_with_which_cublas_is_not_deterministic_is_refused(monkeypatch):
    monkeypatch.setenv(numerics.CUBLAS_VARIABLE, ":4096:2:16:8")
    with pytest.raises(UserError, match="_CONFIG to be :4096:8 or :16:8, not :4096:2:16:8: unset"):
        numerics.choose_kernels(Train(deterministic=True), GPU)
    numerics.choose_kernels(Train(deterministic=True), CPU)


def test_the_users_workspace_is_kept(monkeypatch):
    monkeypatch.setenv(numerics.CUBLAS_VARIABLE, ":16:8")
    numerics.choose_kernels(Train(deterministic=True), GPU)
    assert settings() == (True, True, False, ":16:8")


@pytest.mark.parametrize("values", [{}, {"precision": "bf16", "augment": {"flip": True}, "clip_norm": 1}])
def test_every_operation_of_the_loop_is_deterministic_on_a_cpu_and_its_numbers_are_the_same(data, tmp_path, values):
    """Torch raises an error for an operation that is not. Also when it is interrupted."""
    spec = changed(SPEC, **values)
    plain, plain_state = train(spec, data)
    spec = changed(spec, deterministic=True)
    store = CheckpointStore(tmp_path)
    train(spec, data, store=store, epochs=2)
    resumed, resumed_state = train(spec, data, store=store)
    assert resumed == plain
    assert_equal_states(resumed_state, plain_state)
