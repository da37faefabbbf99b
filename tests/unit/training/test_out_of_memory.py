"""Errors that mean out of memory, and smaller batches after them."""

import pytest
import torch
from loops import LEARNER, assert_close, changed, numbers, start, train
from trainyard.training.out_of_memory import is_out_of_memory

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("FIND was unable to find an engine to execute this computation"),
    RuntimeError("Unable to find an engine to execute this computation"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]
OTHER_ERRORS = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("the user's sensor ran out of memory"),
]

# A model that has memory for few images, in training or in validation.
MODEL = """
from trainyard.training.models import SmallConvNet

class Greedy(SmallConvNet):
    def forward(self, images):
        if self.training == self.in_training and len(images) > self.limit:
            raise RuntimeError(self.message)
        return super().forward(images)

def build(*, channels, classes, limit, in_training, message):
    model = Greedy(channels=channels, classes=classes, width=4)
    model.limit, model.in_training, model.message = limit, in_training, message
    return model
"""


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_out_of_memory_has_many_names(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHER_ERRORS, ids=str)
def test_other_errors_are_not_out_of_memory(error):
    assert not is_out_of_memory(error)


def test_out_of_memory_on_a_cpu_is_recognized():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize("in_training", [True, False])
def test_a_training_goes_on_in_smaller_batches(data, tmp_path, monkeypatch, caplog, in_training):
    """Also where validation needs more memory than training, and where cuDNN finds no algorithm that fits."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "greedy_anywhere.py").write_text(MODEL)
    caplog.set_level("INFO")
    options = {"limit": 16, "in_training": in_training, "message": "GET was unable to find an engine to execute this"}
    spec = changed(LEARNER, model="greedy_anywhere:build", model_args=options, optimizer="sgd", lr=0.05, epochs=2)
    whole, _ = train(spec, data)
    rows, _ = train(changed(spec, model_args=options | {"limit": 5}), data)
    assert_close(rows, whole)
    assert "GET was unable to find an engine" in caplog.text


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_an_update_that_did_not_fit_is_repeated_with_the_same_loss_scale(data, clip_norm):
    """fp16 unscales the gradients before or in the update; the momentum makes a wrong one last."""
    spec = changed(LEARNER, optimizer="sgd", lr=0.1, precision="fp16", clip_norm=clip_norm, epochs=1)
    whole, training = start(spec, data), start(spec, data)
    update, failures = training.state.optimizer.step, [torch.OutOfMemoryError("CUDA out of memory")]

    def fail_once():
        if failures:
            raise failures.pop()
        update()

    training.state.optimizer.step = fail_once
    rows, expected = list(training.epochs()), list(whole.epochs())
    assert training.batch.accumulation == 2
    assert rows[0].train_loss == pytest.approx(expected[0].train_loss, rel=1e-4)
    assert rows[0].val_loss == pytest.approx(expected[0].val_loss, rel=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_an_update_creates_no_state_for_which_memory_may_not_suffice(data, monkeypatch, optimizer):
    """It would update some parameters before that, and then again; and Adam would miss an average."""
    spec = changed(LEARNER, optimizer=optimizer, decay_all=False, epochs=1)
    (expected,) = start(spec, data).epochs()
    training, create, created = start(spec, data), torch.zeros_like, []
    update = training.state.optimizer.step

    def fail_once(*given, **options):
        created.append(given)
        if len(created) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return create(*given, **options)

    def step():
        with monkeypatch.context() as patch:
            patch.setattr(torch, "zeros_like", fail_once)
            update()

    training.state.optimizer.step = step
    (row,) = training.epochs()
    assert numbers(row) == numbers(expected)
    assert not created
