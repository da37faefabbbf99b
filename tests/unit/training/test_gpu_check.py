"""The GPU check runs without a GPU at toy size, so that it keeps up with the code."""

import json

import pytest
from gpu_check import __main__ as gpu_check

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


@pytest.mark.slow
def test_the_long_checks_run_at_toy_size(tmp_path):
    status, found = run(tmp_path, *LONG)
    assert status == 0, found["checks"]


def test_the_measurements_run_at_toy_size(tmp_path, capsys):
    status, found = run(tmp_path, *gpu_check.SPEED, *gpu_check.WHATIF)
    assert status == 0, found["checks"]
    assert found["speed"][0]["what"] == "4 blocks, 8x8, batch 16"
    assert "| ResNet-50, batch 16 | " in capsys.readouterr().out


def test_without_a_gpu_nothing_is_checked_and_the_exit_code_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
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
