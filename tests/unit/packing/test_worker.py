"""The process of a slot, between its trials."""

import gc
import re
import signal
import sys
import weakref
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from loops import SPEC, changed, start, train
from pydantic import TypeAdapter
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.config import Data
from trainyard.config.sweep import AnySweep
from trainyard.config.train import Training
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import UserProgram
from trainyard.kinds.train_on_gpus import END, end_of_ranks
from trainyard.packing import worker as worker_module
from trainyard.packing.messages import Assignment, WorkerSetup
from trainyard.packing.trial_kind import find_kind
from trainyard.packing.worker import Worker
from trainyard.programs.trial_messages import TrialEnded
from trainyard.training import forward_pass
from trainyard.training.checkpoints import CheckpointStore
from trainyard.utils.errors import Diverged
from trainyard.utils.files import write_json


def of_trainings(**slots):
    """A worker for trainings, which has not prepared for any."""
    return worker_of({"dataset": "d", "trials": [{}], "slots": slots}, Path())


def sweep_of(content):
    return TypeAdapter(AnySweep).validate_python(content)


def worker_of(sweep, folder):
    """A worker for the trials of a sweep."""
    worker = Worker()
    sweep = sweep_of(sweep)
    worker._setup = WorkerSetup(sweep, folder, Data(), cwd=str(folder))
    worker._kind = find_kind(sweep)(worker._setup, StopRequest())
    worker._start_thread()
    return worker


@pytest.mark.parametrize("error", [None, Diverged("NaN"), ValueError("in the model")])
def test_compiled_code_is_released_after_each_trial_however_it_ends(monkeypatch, error):
    """Also before a trial that does not compile: the memory pools of CUDA graphs would remain."""
    released = []
    monkeypatch.setattr(forward_pass, "release_compiled_code", lambda: released.append(True))
    worker = of_trainings()

    def train(assignment, report):
        if error is not None:
            raise error
        return TrialEnded(status=TrialStatus.FINISHED)

    monkeypatch.setattr(worker._kind, "_train", train)
    for compiles in (True, False):
        worker.begin(SimpleNamespace(spec=Training(compile=compiles), taken_over=None))
    assert len(released) == 1


SPECS = {
    "plain": {},
    "fails": {},
    "diverges": {"lr": 1e6, "precision": "fp32"},
    "compiled": {"compile": True},
    "in a cycle": {"ema_decay": 0.9, "activation_checkpointing": True},
    "in 16 bits": {"precision": "bf16", "clip_norm": 1.0, "metrics": ["top5_accuracy"]},
    "mixed": {"augment": {"mixup": 0.2, "flip": True}, "accumulation": 2, "optimizer": "adamw"},
    "cut": {"augment": {"cutmix": 1.0, "resized_crop": 0.5}},
    "in fp16": {"precision": "fp16", "freeze": ["0"], "lr_scale": {"*": 0.5}, "label_smoothing": 0.1},
    "with a loss": {"loss": "torch.nn:CrossEntropyLoss"},
}


def test_a_process_holds_no_tensor_of_an_earlier_trial(data, monkeypatch, tmp_path):
    """Whatever the trials do, in two rounds, while Python collects no garbage by itself."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    worker, found = of_trainings(), []

    def create(assignment, report):
        training = start(assignment.spec, data)
        tensors = [*training.module.parameters(), *training.module.buffers(), training.state.progress.sums]
        found.extend(weakref.ref(each) for each in tensors)
        if assignment.trial == "in a cycle":
            training.module.forward = training.module.forward
        if assignment.trial == "fails":
            training.module.register_forward_hook(lambda *_: 1 / 0)
        return training

    monkeypatch.setattr(worker._kind, "create_trainer", create)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            for name, options in SPECS.items():
                spec = changed(SPEC, **{"epochs": 1, **options})
                message = worker.begin(Assignment(spec, name, 1, tmp_path, tmp_path))
                while not isinstance(message, TrialEnded):
                    message = worker.resume(False)
                assert [name for each in found if each() is not None] == []
    finally:
        gc.enable()
    assert len(found) > 2 * len(SPECS) * 10


@pytest.mark.parametrize(("share", "kwh"), [(1.0, 0.75), (0.25, 0.1875)])
def test_a_trial_has_the_energy_of_its_gpus_and_of_a_shared_one_its_share(data, monkeypatch, tmp_path, share, kwh):
    joules = iter([1e6, 2e6, 2.8e6, 2.9e6])
    worker = of_trainings(gpus_per_trial=share)
    worker._gpus = [SimpleNamespace(joules=lambda: next(joules))] * 2
    monkeypatch.setattr(worker._kind, "create_trainer", lambda assignment, report: start(assignment.spec, data))
    worker.begin(Assignment(changed(SPEC, epochs=1), "t", 1, tmp_path, tmp_path))
    assert worker.resume(False).energy_kwh == pytest.approx(kwh)
    lost = iter([1e6, None])
    worker._gpus = [SimpleNamespace(joules=lambda: next(lost))]
    worker.begin(Assignment(changed(SPEC, epochs=1), "t", 1, tmp_path, tmp_path))
    assert worker.resume(False).energy_kwh is None, "unknown is not zero"


def test_a_trial_that_resumes_and_diverges_counts_the_seconds_before(data, tmp_path, monkeypatch):
    checkpoints = CheckpointStore(tmp_path)
    train(SPEC, data, store=checkpoints, epochs=1)
    trainer = start(SPEC, data, store=checkpoints)
    trainer.history[0] = replace(trainer.history[0], seconds=1000.0)
    trainer.module.register_forward_hook(lambda module, images, output: output * float("nan"))
    worker = of_trainings()
    monkeypatch.setattr(worker._kind, "create_trainer", lambda assignment, report: trainer)
    worker.begin(SimpleNamespace(spec=Training(), taken_over=None))
    end = worker.resume(False)
    assert end.status is TrialStatus.DIVERGED
    assert end.seconds > 1000


def test_a_model_that_calls_exit_fails_its_trial_and_does_not_end_the_worker(data, monkeypatch):
    trainer = start(SPEC, data)
    trainer.module.register_forward_hook(lambda module, images, output: sys.exit(0))
    worker = of_trainings()
    monkeypatch.setattr(worker._kind, "create_trainer", lambda assignment, report: trainer)
    end = worker.begin(SimpleNamespace(spec=Training(), taken_over=None))
    assert end.status is TrialStatus.FAILED
    assert re.fullmatch(r"it calls sys.exit\(0\) \(.*test_worker.py, line \d+\)", end.error)


@pytest.mark.parametrize("metrics", [{"loss": 0.5, "best_loss": 0.25}, None], ids=["saved", "killed"])
def test_ranks_that_early_stopping_ends_have_the_metrics_of_their_last_epoch(tmp_path, metrics):
    """Also if they took longer than their grace period to save their state."""
    if metrics:
        write_json(tmp_path / END, {"status": "interrupted", "error": "", "metrics": metrics, "earlier_seconds": 10.0})
    end = end_of_ranks(TrialEnded(status=TrialStatus.STOPPED, metrics={"loss": 0.5}, seconds=2.0), tmp_path)
    assert end.status is TrialStatus.STOPPED
    assert end.metrics == (metrics or {"loss": 0.5})
    assert end.seconds == (12.0 if metrics else 2.0)


def test_what_a_trial_starts_gets_the_signals_that_whoever_started_the_job_has_blocked(tmp_path, monkeypatch):
    signals, blocked = {signal.SIGTERM}, Future()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "get_gpu_ids", list)
    monkeypatch.setattr(worker_module, "stop_request_of_signals", lambda: unblock(signals))
    try:
        worker = Worker()
        worker.start(WorkerSetup(sweep_of({"command": "true", "slots": {"cpus": 1}}), tmp_path, Data()))
        worker._calls.put(lambda: blocked.set_result(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        assert not signals & blocked.result(PATIENCE_SECONDS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock(signals):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return StopRequest()


@pytest.mark.parametrize("own", [False, True])
def test_each_function_begins_in_its_folder_wherever_the_one_before_it_went(tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"leaving_{own}.py").write_text(
        "import os\ndef run(config, context):\n    context.report(at=os.stat('.').st_ino)\n    os.chdir('/')\n"
    )
    worker = worker_of({"function": "m:f", "workdir": "trial" if own else "keep"}, tmp_path)
    worker._kind.dataset = None
    for trial in ("a", "b"):
        folder = tmp_path / "trials" / trial
        spec = UserProgram(function=f"leaving_{own}:run")
        at = worker.begin(Assignment(spec, trial, 1, folder, tmp_path / "checkpoints")).row["at"]
        assert at == (folder if own else tmp_path).stat().st_ino
        assert worker.resume(False).status is TrialStatus.FINISHED
    assert Path.cwd() == Path("/")
