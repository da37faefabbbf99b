"""A figure of a benchmark stands beside the command that has measured it."""

import re
import sys

import pytest
from project import ROOT

RESULTS = sorted((ROOT / "benchmarks/results").glob("*.md"))


def test_results_are_kept_in_the_file_of_their_command(monkeypatch, tmp_path, capsys):
    import common

    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["benchmarks/slot_pause.py", "--trials", "9"])
    common.print_table(["trial", "pause"], [["a command", "4.1"]])
    common.print_result("- and a line")
    (path,) = (tmp_path / "results").iterdir()
    text = path.read_text()
    assert path.name == "slot_pause-trials-9.md"
    assert text.startswith("# `python benchmarks/slot_pause.py --trials 9`\n\n")
    assert text.endswith("\n\n| trial | pause |\n| --- | --- |\n| a command | 4.1 |\n\n- and a line\n")
    assert capsys.readouterr().out == text[text.index("| trial") :].replace("\n\n- and", "\n- and")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_file_of_results_says_its_command_and_is_linked(path):
    title = re.match(r"# `python benchmarks/(\w+\.py)(.*)`\n\n\d{4}-\d\d-\d\d, \d+ CPUs", path.read_text())
    assert title
    assert (ROOT / "benchmarks" / title[1]).exists()
    assert re.sub(r"\W+", "-", title[1].removesuffix(".py") + title[2]).strip("-") == path.stem
    assert f"](results/{path.name})" in (ROOT / "benchmarks/README.md").read_text()
