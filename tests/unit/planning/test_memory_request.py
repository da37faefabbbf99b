"""The host memory that jobs request: estimated, measured, raised after a job ran out of it, limited to a node."""

from dataclasses import asdict

import pytest
from sweep_journals import record_attempt, session_of
from torch import nn
from torchvision import models
from trainyard.cluster import job_memory
from trainyard.cluster.job_memory import MemoryRecord
from trainyard.config.load import check_config
from trainyard.config.model_sizes import count_parameters
from trainyard.config.train import Train
from trainyard.planning.memory_request import (
    NodeMemory,
    request_memory,
    scale_memory,
    staging_memory,
    sweep_memory,
)
from trainyard.planning.plan import plan_sweep
from trainyard.training.models import build_model
from trainyard.utils.files import write_json

TRAIN, LR = {"model": "cnn"}, {"lr": [0.1, 0.2]}
CONFIG = {
    "datasets": {"d": {"source": "digits"}, "p": {"source": "python", "factory": "a:b"}},
    "sweeps": {
        "one": {"dataset": "d", "grid": LR, "train": TRAIN, "slots": {"gpus_per_node": 1}},
        "two": {"dataset": "d", "grid": LR, "train": TRAIN, "slots": {"gpus_per_node": 2}},
        "shared": {"dataset": "d", "grid": LR, "train": TRAIN, "slots": {"gpus_per_node": 2, "gpus_per_trial": 0.5}},
        "ranks": {"dataset": "d", "grid": LR, "train": TRAIN, "slots": {"gpus_per_node": 4, "gpus_per_trial": 2}},
        "trees": {"dataset": "d", "trees": {}, "slots": {"cpus": 2}},
        "own": {"command": "true", "slots": {"jobs": 2, "gpus_per_node": 4}},
        "large": {"dataset": "d", "grid": {"model": ["cnn", "vit_h_14"]}, "slots": {"gpus_per_node": 1}},
        "drawn": {"dataset": "d", "search": {"trials": 2, "values": {"model": ["cnn", "vit_h_14"]}}},
        "loaded": {"dataset": "p", "grid": LR, "train": TRAIN, "slots": {"gpus_per_node": 1, "cpus_per_trial": 9}},
    },
    "scaling": {"s": {"dataset": "d", "train": TRAIN, "scales": ["1x1", "1x4", "2x4"]}},
}
ANYWHERE = NodeMemory()


def record(folder, **changes):
    known = MemoryRecord(job="1", processes=1, requested_mib=8000, ended=True)
    write_json(folder / "memory.json", asdict(known) | changes)


def of_sweep(results, name, node=ANYWHERE):
    config = check_config(CONFIG)
    return sweep_memory(config, plan_sweep(config, name, results), results, node)


@pytest.mark.parametrize(
    ("sweep", "mb"),
    [
        ("one", 8000),
        ("two", 14000),
        ("shared", 26000),
        ("ranks", 26000),
        ("trees", 14000),
        ("own", 34000),
        ("large", 28000),
        ("drawn", 28000),
        ("loaded", 12000),
    ],
)
def test_a_sweep_requests_memory_per_slot_and_by_the_size_of_its_models(tmp_path, sweep, mb):
    assert of_sweep(tmp_path, sweep).mb == mb


def test_a_study_requests_memory_per_rank_whatever_its_number_of_nodes(tmp_path):
    found = [scale_memory(check_config(CONFIG), "s", scale, tmp_path, ANYWHERE).mb for scale in ("1x1", "1x4", "2x4")]
    assert found == [8000, 26000, 26000]


def test_a_staged_dataset_counts_once_a_node_but_in_each_slot_that_fits_trees(tmp_path):
    assert [of_sweep(tmp_path, name).mb for name in ("two", "trees")] == [14000, 14000]
    (tmp_path / "data/d").mkdir(parents=True)
    with open(tmp_path / "data/d/train-images.npy", "wb") as file:
        file.truncate(5000 * 2**20)
    after = of_sweep(tmp_path, "two"), of_sweep(tmp_path, "trees")
    assert [each.mb for each in after] == [19000, 134000]
    assert "and 5 GB of data" in after[0].basis


def test_the_measured_peak_replaces_the_estimate_and_follows_the_number_of_slots(tmp_path):
    record(tmp_path / "sweeps/two", processes=2, peak_mib=4000, process_peak_mib=2000)
    found = of_sweep(tmp_path, "two")
    assert (found.mb, found.basis) == (8000, "1.5 times the measured 2 GB per slot")
    for scale, mb in (("1x1", 32000), ("1x4", 122000)):
        record(tmp_path / "scaling/s/1x4", processes=4, peak_mib=80000, process_peak_mib=20000)
        assert scale_memory(check_config(CONFIG), "s", scale, tmp_path, ANYWHERE).mb == mb


@pytest.mark.parametrize(
    ("last", "accounting", "mb"),
    [
        ({"oom_kills": 1}, False, 12000),
        ({"ended": False}, True, 12000),
        ({"ended": False}, False, 9000),
        ({}, True, 9000),
        ({"requested_mib": None, "oom_kills": 1}, True, 9000),
    ],
)
def test_after_a_job_ran_out_of_memory_more_is_requested(tmp_path, monkeypatch, last, accounting, mb):
    monkeypatch.setattr(job_memory, "ran_out_of_memory", lambda job: accounting)
    record(tmp_path / "data/d", **{"peak_mib": 4600, "process_peak_mib": 4600} | last)
    assert staging_memory("d", 1, tmp_path, ANYWHERE).mb == mb


@pytest.mark.parametrize(
    ("measured", "node", "mb", "limit"),
    [
        (0, NodeMemory(100_000, 50_000), 34000, ""),
        (0, NodeMemory(100_000, 20_000), 19000, "limited to the share of a node"),
        (0, NodeMemory(16_000, 16_000), 15200, "limited to the share of a node"),
        (5000, NodeMemory(100_000, 20_000), 32000, ""),
        (5000, NodeMemory(30_000, 20_000), 28500, "limited to a whole node"),
    ],
)
def test_an_estimate_fits_the_share_of_a_node_and_what_is_needed_fits_the_node(measured, node, mb, limit):
    records = [MemoryRecord(job="1", processes=4, requested_mib=9, process_peak_mib=measured, ended=True)]
    found = request_memory(node, records, 4, 8000, "slot")
    assert found.mb == mb
    assert found.basis.endswith(limit)


def test_a_job_that_only_writes_tables_needs_little(tmp_path):
    record(tmp_path / "sweeps/own", processes=4, process_peak_mib=50000)
    with session_of(tmp_path / "sweeps/own") as journal:
        for name in plan_sweep(check_config(CONFIG), "own", tmp_path).state.trials:
            record_attempt(journal, name, seconds=1.0)
    assert of_sweep(tmp_path, "own").mb == 4000


@pytest.mark.parametrize("spec", [{"model": "resnet", "model_args": {"blocks": 9, "width": 64}}, {"model": "cnn"}])
def test_the_parameters_of_own_models_are_known_without_torch(spec):
    model = build_model(Train(**spec), shape=(32, 32, 3), classes=10)
    assert count_parameters(spec["model"], spec.get("model_args", {})) == pytest.approx(_millions(model), rel=0.2)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "vit_b_16", "wide_resnet50_2", "swin_s"])
def test_the_parameters_of_torchvisions_models_are_not_underestimated(name):
    assert count_parameters(name, {}) >= 0.99 * models.get_model_weights(name).DEFAULT.meta["num_params"] / 1e6


def test_no_large_model_of_torchvision_is_missing():
    for name in models.list_models(module=models):
        for weights in models.get_model_weights(name):
            assert count_parameters(name, {}) >= 0.99 * weights.meta["num_params"] / 1e6, name


def _millions(model: nn.Module) -> float:
    return sum(each.numel() for each in model.parameters()) / 1e6
