"""A rank of a scaling study: what its checkpoints depend on, and how its failure is told."""

import json
import logging
import os
import signal
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from trainyard.cluster import host
from trainyard.cluster.telemetry import CPU_COLUMNS
from trainyard.config.config import Config
from trainyard.config.datasets import Synthetic
from trainyard.config.load import config_copy
from trainyard.config.scaling import TrainScaling
from trainyard.data.staging import stage
from trainyard.planning.history import is_trained
from trainyard.programs.user_environment import find_versions
from trainyard.scaling import rank, torchrun
from trainyard.scaling.rank_failures import first_failure, record_exception, write_failures
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.process_group import Group
from trainyard.training.sampler import BatchSizes
from trainyard.utils.errors import UserError

IMAGES = Synthetic(source="synthetic", images=40, val_images=8, height=8, width=8)
KEYS = [
    ("keep_checkpoints", "all"),
    ("ddp", {"timeout_minutes": 1, "find_unused_parameters": True}),
    ("cpus_per_gpu", 2),
]


@pytest.mark.parametrize(("key", "value"), KEYS)
def test_a_key_that_changes_no_result_keeps_the_checkpoints(staged, key, value):
    def checkpoints(**more):
        study = TrainScaling.model_validate({"dataset": "d", "scales": ["1x1"], **more})
        return study.result_content("1x1", staged.digest)

    assert checkpoints(**{key: value}) == checkpoints()
    assert checkpoints(retrain=1) != checkpoints()


def test_the_threads_of_a_rank_are_its_share_of_the_node_though_it_keeps_near_its_gpu(tmp_path, monkeypatch, handlers):
    threads, cpus = [], [range(6)]

    @contextmanager
    def near_its_gpu(*, traces):
        cpus.append(range(3))
        yield Group(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(cpus[-1]))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(rank, "process_group", near_its_gpu)
    study = TrainScaling.model_validate({"dataset": "d", "scales": ["1x1"]})
    with rank.join_ranks(study, "1x1", traces=tmp_path):
        assert threads == [6]


def test_telemetry_is_of_the_gpus_that_train(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=number))
    monkeypatch.setattr(rank, "record_telemetry_beside", lambda *given, gpus, **options: gpus)
    group = Group(rank=0, local_rank=0, world_size=1, device=torch.device("cuda", 0))
    training = SimpleNamespace(group=group, state=SimpleNamespace(is_new=False))
    assert rank._telemetry(training, tmp_path) == ["0", "1"]


def test_the_memory_of_a_training_is_not_that_of_another_one_on_another_node(tmp_path, handlers):
    """The two have the same folder; a run that resumes keeps the samples of the nodes before."""
    stage(IMAGES, tmp_path / "data/d")
    samples = f"{','.join(CPU_COLUMNS)}\n1.0,100.0,99999.0,1\n"

    def trained(**train):
        study = {
            "dataset": "d",
            "scales": ["1x1"],
            "train": {"model": "cnn", "model_args": {"width": 1}, "batch_size": 8, **train},
        }
        config = Config.model_validate({"datasets": {"d": IMAGES}, "scaling": {"s": study}})
        folder = tmp_path / "scaling/s/1x1"
        rank.train_scale(config, "s", "1x1", results=tmp_path)
        (folder / "telemetry/cpu-other.csv").write_text(samples)
        assert is_trained(config.scaling["s"], "1x1", tmp_path / "scaling/s", tmp_path)
        return json.loads((folder / "summary.json").read_text())["cpu_rss_peak_mib"]

    assert trained() < 99999
    other = TrainScaling.model_validate({"dataset": "d", "scales": ["1x1"], "retrain": 1})
    assert not is_trained(other, "1x1", tmp_path / "scaling/s", tmp_path)
    assert trained() == 99999
    assert trained(lr=0.01) < 99999


def test_a_scale_names_the_sessions_that_have_trained_it(tmp_path, handlers):
    """Not one that ended before its first checkpoint, nor one that only wrote the summary again."""
    stage(IMAGES, tmp_path / "data/d")
    train = {"model": "cnn", "model_args": {"width": 1}, "batch_size": 8, "epochs": 2}
    study = {"dataset": "d", "scales": ["1x1"], "train": train}
    config = Config.model_validate({"datasets": {"d": IMAGES}, "scaling": {"s": study}})
    for _ in range(2):
        rank.train_scale(config, "s", "1x1", results=tmp_path)
    summary = json.loads((tmp_path / "scaling/s/1x1/summary.json").read_text())
    (session,) = summary["sessions"]
    assert session["versions"] == find_versions(config.scaling["s"])
    assert session["config"] == config_copy(config, tmp_path).stem
    store = CheckpointStore(tmp_path / "checkpoints")
    for epochs, step, code in [(0, 0, "1a"), (0, 0, "2b"), (0, 7, "3c"), (1, 0, "4d-dirty"), (1, 0, "5e")]:
        state = SimpleNamespace(progress=SimpleNamespace(step=step))
        rank._record_session(SimpleNamespace(history=[None] * epochs, state=state), store, {"code": code})
    assert [each["code"] for each in rank._read_note(store, rank.SESSIONS)] == ["2b", "3c", "5e"]


def test_each_epoch_has_a_checkpoint_if_all_are_kept_and_the_log_names_the_master_node(tmp_path, handlers, caplog):
    caplog.set_level(logging.INFO)
    stage(IMAGES, tmp_path / "data/d")
    train = {"model": "cnn", "model_args": {"width": 1}, "batch_size": 8, "epochs": 4}
    study = {"dataset": "d", "scales": ["1x1"], "train": train}
    for keep, epochs in (("latest", [4]), ("all", [1, 2, 3, 4])):
        changed = study | {"keep_checkpoints": keep, "retrain": len(epochs)}
        config = Config.model_validate({"datasets": {"d": IMAGES}, "scaling": {"s": changed}})
        rank.train_scale(config, "s", "1x1", results=tmp_path)
        digest = json.loads((tmp_path / "scaling/s/1x1/summary.json").read_text())["spec_digest"]
        saved = sorted((tmp_path / "scaling/s/1x1/checkpoints" / digest).glob("*.pt"))
        assert [int(path.name[6:10]) for path in saved] == epochs
    assert f"in fp32, global batch 8, master node {host.node_name()}" in caplog.text


@pytest.mark.parametrize(("kept", "micro"), [(None, 16), (4, 4), (64, 16)])
def test_the_micro_batch_that_fitted_before_is_not_larger_than_the_batch(tmp_path, kept, micro):
    """A trial that goes on with more GPUs has fewer images on each."""
    study = TrainScaling.model_validate({"dataset": "d", "scales": ["1x1"], "train": {"batch_size": 16}})
    store = CheckpointStore(tmp_path)
    if kept:
        rank._remember_micro_batch(store, BatchSizes(per_rank=64, micro=kept))
    batch = rank._batch(study, store, Group(rank=0, local_rank=0, world_size=1, device=torch.device("cpu")))
    assert (batch.per_rank, batch.micro) == (16, micro)


def test_the_exception_of_a_rank_is_the_cause_and_not_the_abort_of_another(tmp_path):
    """NCCL aborts ranks whose collective does not complete, because another one has failed."""
    told = tmp_path / "error.json"
    told.write_text(json.dumps({"message": "RuntimeError: planned trouble", "timestamp": 100.5}))
    raised = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(told))
    aborted = ProcessFailure(local_rank=0, pid=2, exitcode=-signal.SIGABRT, error_file="")
    assert aborted.timestamp > raised.timestamp
    write_failures([torchrun.rank_failure(0, "n1", aborted)], tmp_path, node="n1")
    first = first_failure(tmp_path)
    assert "SIGABRT" in first.message
    assert "timeout_minutes of `ddp`" in first.message
    assert "flight-recorder-rank-*" in first.message
    write_failures([torchrun.rank_failure(1, "n2", raised)], tmp_path, node="n2")
    assert first_failure(tmp_path).message == "RuntimeError: planned trouble"


def test_a_rank_killed_from_outside_is_the_cause_of_exceptions(tmp_path):
    told = tmp_path / "error.json"
    told.write_text(json.dumps({"message": "RuntimeError: Connection closed by peer", "timestamp": 100.5}))
    raised = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(told))
    killed = ProcessFailure(local_rank=1, pid=2, exitcode=-signal.SIGKILL, error_file="")
    write_failures(
        [torchrun.rank_failure(0, "n1", raised), torchrun.rank_failure(1, "n1", killed)], tmp_path, node="n1"
    )
    assert "SIGKILL" in first_failure(tmp_path).message


def test_a_rank_whose_own_code_calls_exit_has_failed(tmp_path, monkeypatch):
    """With exit code 0, torchrun would count it as successful."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    message = r"^the training did not finish: it calls sys.exit\(0\) \(.*, line \d+\)$"
    with pytest.raises(UserError, match=message), record_exception():
        sys.exit(0)
    assert json.loads((tmp_path / "error.json").read_text())["message"].startswith("it calls sys.exit(0) (")
