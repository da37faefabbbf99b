"""Which growing file the drill takes for a checkpoint that is being written."""

import pytest
from trainyard.checks.resume_drill import Saves


@pytest.mark.parametrize(
    ("name", "is_save"),
    [("epoch-2.pt", True), (".epoch-2.pt.tmp", True), ("mlflow.db", False), ("train.log", False)],
)
def test_a_file_that_was_there_before_is_no_save(tmp_path, name, is_save):
    (tmp_path / "epoch-1.pt").write_text("whole")
    (tmp_path / "mlflow.db").write_text("runs")
    saves = Saves(tmp_path, "epoch-*.pt")
    for _ in range(2):
        assert not saves.look(), "nothing is written"
    found = list[bool]()
    for size in range(1, 4):
        (tmp_path / name).write_text("." * 10 * size)
        found.append(saves.look())
    assert found[-1] == is_save
    assert saves.written == (name if is_save else "")
