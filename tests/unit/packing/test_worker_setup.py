"""What the workers of a sweep know before their first trial."""

import math
import os
import sys
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter
from trainyard.cluster import gpus
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.config import Config, Data
from trainyard.config.sweep import AnySweep, CommandSweep, TrainSweep
from trainyard.kinds.train import TrainTrials
from trainyard.packing import driver, worker, worker_gpu
from trainyard.planning.plan import plan_sweep
from trainyard.programs.user_environment import thread_variables


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"grid": {"lr": [0.1, 0.2]}}, False),
        ({"grid": {"lr": [0.1, 0.2]}, "train": {"deterministic": True}}, True),
        ({"grid": {"deterministic": [False, True]}}, True),
        ({"search": {"trials": 3, "values": {"deterministic": [False, True], "lr": [0.1, 0.2]}}}, True),
        ({"function": "os:getcwd"}, False),
    ],
)
def test_a_worker_prepares_for_deterministic_trials_if_there_may_be_one(tmp_path, fields, expected):
    """Before the first trial: torch reads the workspace of cuBLAS only once."""
    sweep = TypeAdapter(AnySweep).validate_python({"dataset": "digits", **fields})
    plan = SimpleNamespace(state=SimpleNamespace(sweep=sweep, name="s"))
    assert driver._worker_setup(plan, tmp_path, Data(), {}).is_deterministic == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"train": {"model": "resnet"}, "grid": {"model": ["cnn", "resnet"]}}, False),
        ({"train": {"model": "resnet"}, "grid": {"model": ["cnn", "resnet18"]}}, True),
        ({"train": {"model": "networks:build"}, "grid": {"lr": [0.1, 0.2]}}, True),
    ],
)
def test_workers_import_torchvision_ahead_if_a_model_may_need_it(fields, expected):
    """It imports torch's compiler, too: together this takes as long as the import of torch."""
    sweep = TrainSweep.model_validate({"dataset": "digits", **fields})
    assert ("torchvision" in TrainTrials.preload(sweep)) == expected


@pytest.mark.parametrize(("slots", "visible"), [({"gpus_per_node": 0}, ""), ({"gpus_per_node": 2}, "1")])
def test_trials_without_gpus_see_none_of_a_node_that_has_some(tmp_path, monkeypatch, slots, visible):
    """NVML lists them all the same: it ignores CUDA_VISIBLE_DEVICES."""
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: f"H200 number {handle}",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 0,  # asked if this test is the first to import telemetry
        NVMLError=RuntimeError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for name in thread_variables(64):
        monkeypatch.setenv(name, "64")
    monkeypatch.setattr(worker.ray, "get_gpu_ids", list)
    monkeypatch.setattr(worker, "stop_request_of_signals", StopRequest)
    monkeypatch.chdir(tmp_path)
    sweep = CommandSweep.model_validate({"command": "true", "slots": {**slots, "cpus_per_trial": 3}})
    plan = SimpleNamespace(state=SimpleNamespace(sweep=sweep, name="s"))
    started = worker.Worker().start(driver._worker_setup(plan, tmp_path, Data(), {}))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
    assert {os.environ[name] for name in thread_variables(64)} == {"3"}, "of the trial, not of the job"
    assert started.device == ("H200 number 1" if visible else "cpu")
    assert gpus.has_gpu() == bool(visible)
    if not visible:
        assert worker_gpu.probe_gpu() == "there is no GPU to check"


def test_a_sweep_that_gets_a_whole_node_has_no_more_slots_than_its_config_allows(tmp_path, monkeypatch):
    allocation = Allocation(job="1", nodes=("n1",), end_time=math.inf, cpus_per_node=64)
    monkeypatch.setattr(driver.slurm_allocation, "current_allocation", lambda: allocation)
    slots = {"cpus": 8, "cpus_per_trial": 2}
    sweep = {"command": "echo {x}", "grid": {"x": list(range(20))}, "slots": slots, "goal": "fastest"}
    plan = plan_sweep(Config.model_validate({"sweeps": {"s": sweep}}), "s", tmp_path)
    assert driver._fix_slots(plan).slots.count == 4
