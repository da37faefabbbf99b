"""The GPU check runs without a GPU at toy size, so that it keeps up with the code."""

import json
import os
import subprocess
import sys
import threading
from unittest import mock

import pytest
import torch
from gpu_check import __main__ as gpu_check
from gpu_check import compilation, correctness, endings, memory, rig
from trainyard.training.loaders import load_input_data

# These start programs or compile, which takes ten seconds each. What they check has unit tests, too.
LONG = ["one_rank", "two_ranks", "failing_rank", "launch", "compile", "compiled_sweep"]


def run(folder, *names):
    """The exit code at toy size, and the content of the file with the findings."""
    status = gpu_check.main(["one", *names, "--toy", "--out", str(folder)])
    return status, json.loads((folder / "gpu_check_one.json").read_text())


def test_the_checks_run_at_toy_size(tmp_path, capsys):
    status, found = run(tmp_path, *(name for name in gpu_check.CORRECT if name not in LONG))
    assert status == 0, found["checks"]
    assert "| data resident | PASS | bit-identical to a CPU |" in capsys.readouterr().out


def test_the_environment_is_named_with_any_version_of_torch(tmp_path, monkeypatch):
    """torch 2.11 has no function that says how the allocator is set."""
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings", raising=False)
    status, found = run(tmp_path, "environment")
    assert status == 0, found


def test_a_compiled_training_without_the_cuda_graphs_that_it_asked_for_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "cuda_graph_skips", lambda: 1)
    monkeypatch.setattr(compilation, "OPTIONS", {"bf16": {}})
    status, found = run(tmp_path, "compile")
    assert status == 1
    assert "CUDA graphs skipped 1" in str(found["checks"])


@pytest.mark.slow
def test_the_long_checks_run_at_toy_size(tmp_path):
    status, found = run(tmp_path, *LONG)
    assert status == 0, found["checks"]


def test_the_measurements_run_at_toy_size(tmp_path, capsys):
    status, found = run(tmp_path, *gpu_check.SPEED, *gpu_check.WHATIF)
    assert status == 0, found["checks"]
    assert found["speed"][0]["what"] == "4 blocks, 8x8, batch 16"
    assert "| ResNet-50, batch 16 | " in capsys.readouterr().out


def test_the_images_that_are_larger_than_a_share_can_be_opened(tmp_path):
    """The check of the share needs a GPU, its dataset does not."""
    staged = memory.black_images(tmp_path, size_bytes=100 * 64 * 64 * 3)
    assert len(load_input_data(staged, torch.device("cpu")).train) == 100


def test_without_a_gpu_nothing_is_checked_and_the_exit_code_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_check.main(["--out", str(tmp_path)]) == 2
    assert "nothing was checked" in capsys.readouterr().err


def test_what_has_no_time_left_is_not_run_and_counts_as_failed(tmp_path):
    status = gpu_check.main(["correct", "--toy", "--minutes", "0", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "gpu_check_correct.json").read_text())
    assert status == 1
    assert found["checks"] == [[name, "not run", "no time was left"] for name in gpu_check.CORRECT]


def test_a_check_that_raises_has_failed(tmp_path, monkeypatch):
    monkeypatch.setitem(gpu_check.ALL, "data", lambda rig: 1 / 0)
    status, found = run(tmp_path, "data", "syncs")
    assert status == 1
    assert [result for _, result, _ in found["checks"]] == ["FAIL", "info"]
    assert "ZeroDivisionError" in found["checks"][0][2]


def test_a_check_that_finds_nothing_has_failed(tmp_path, monkeypatch):
    monkeypatch.setitem(gpu_check.ALL, "data", lambda rig: None)
    status, found = run(tmp_path, "data")
    assert status == 1
    assert found["checks"] == [["data", "FAIL", "the check has found nothing"]]


def test_a_check_that_runs_when_the_time_is_up_is_interrupted(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(gpu_check.ALL, "data", lambda rig: threading.Event().wait())
    status, found = run(tmp_path, "data", "syncs", "--minutes", "0.1")
    assert status == 1
    assert found["checks"] == [
        ["data", "FAIL", "not finished when the time was up"],
        ["syncs", "not run", "no time was left"],
    ]
    assert capsys.readouterr().out.endswith("\n2 checks failed or had no time left\n  data\n  syncs\n")


HANGING = """
import threading
from gpu_check import __main__ as gpu_check

def hang(rig):
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass

gpu_check.ALL["telemetry"] = hang
gpu_check.HANG_SECONDS = 2
gpu_check.main(["one", "telemetry", "--toy", "--minutes", "0.2"])
"""


def test_a_check_that_hangs_ends_the_program_with_its_place_and_the_tables(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OUT": str(tmp_path)}
    command = [sys.executable, "-c", HANGING]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=600)
    assert done.returncode == 1
    assert "in hang\n" in done.stderr
    assert "| telemetry | FAIL | it hangs: the stack trace says where |" in done.stdout


# ---- each check can fail


def test_a_training_that_is_kept_fails_the_check_of_memory(tmp_path, monkeypatch):
    kept = []

    def start(spec, data, **options):
        kept.append(rig.start(spec, data, **options))
        return kept[-1]

    monkeypatch.setattr(memory, "start", start)
    monkeypatch.setattr(memory, "KINDS", {"plain": {}})
    status, found = run(tmp_path, "kept")
    assert status == 1
    assert "more tensors in the second round: {'plain': " in found["checks"][0][2]


def let_start(monkeypatch, module, change):
    """Let a check start its trainings with what `change` returns for the number, from 1, the spec and the options."""
    started = []

    def start(spec, data, **options):
        started.append(spec)
        spec, options = change(len(started), spec, options)
        return rig.start(spec, data, **options)

    monkeypatch.setattr(module, "start", start)


def other_training(monkeypatch, module, number, **values):
    """Let a check start its `number`-th training with other values of the spec."""
    let_start(
        monkeypatch, module, lambda at, spec, options: (rig.changed(spec, **values) if at == number else spec, options)
    )


def without(monkeypatch, module, missing):
    """Let a check start its trainings without this option."""
    let_start(
        monkeypatch,
        module,
        lambda at, spec, options: (spec, {name: value for name, value in options.items() if name != missing}),
    )


def test_a_training_that_learns_nothing_fails_the_check_of_numerics(tmp_path, monkeypatch):
    other_training(monkeypatch, correctness, 2, lr=1e-9)
    _, found = run(tmp_path, "numerics")
    assert [result for _, result, _ in found["checks"]] == ["FAIL", "PASS"]


@pytest.mark.parametrize("values", [{"freeze": []}, {"lr_scale": {}}, {"augment": {}}])
def test_a_training_that_is_not_fine_tuned_fails_its_check(tmp_path, monkeypatch, values):
    other_training(monkeypatch, correctness, 1, **values)
    _, found = run(tmp_path, "augmentation")
    assert found["checks"][1][:2] == ["mixed and fine-tuned", "FAIL"]


def test_weights_without_an_average_fail_the_check_of_the_objective(tmp_path, monkeypatch):
    other_training(monkeypatch, correctness, 1, ema_decay=None)
    _, found = run(tmp_path, "objective")
    assert found["checks"][0][1] == "FAIL"


def test_a_training_that_begins_again_or_is_not_stopped_fails_the_check_of_resuming(tmp_path, monkeypatch):
    for missing in ("store", "stop_request"):
        without(monkeypatch, correctness, missing)
        _, found = run(tmp_path, "resume")
        assert found["checks"][1][:2] == ["resume, deterministic", "FAIL"]


def test_a_training_without_a_deadline_or_a_checkpoint_fails_the_check_of_stopping(tmp_path, monkeypatch):
    monkeypatch.setattr(endings, "GRACE_SECONDS", 0)
    for missing in ("deadline", "store"):
        without(monkeypatch, endings, missing)
        _, found = run(tmp_path, "stop")
        assert [result for _, result, _ in found["checks"]] == ["FAIL", "FAIL"], missing


def test_gradients_that_do_not_overflow_fail_the_check_of_overflows(tmp_path, monkeypatch):
    monkeypatch.setattr(correctness, "FIRST_SCALE", 1.0)
    _, found = run(tmp_path, "fp16")
    assert [result for _, result, _ in found["checks"]] == ["FAIL", "FAIL"]


def test_a_training_that_is_not_compiled_fails_the_check_of_compilation(tmp_path, monkeypatch):
    monkeypatch.setattr(rig.Rig, "compiler", lambda self: mock.patch("torch.compile", lambda step, **options: step))
    _, found = run(tmp_path, "compile")
    assert {result for _, result, _ in found["checks"]} == {"FAIL"}
