"""A write is complete or has no effect, and a lock ends with its holder."""

import os
import subprocess
import sys

import pytest
from trainyard.utils.files import atomic_write
from trainyard.utils.import_path import SCRIPTS


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:  # noqa: PT012
        file.write("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_utf_8_in_any_locale(tmp_path):
    """Readers, such as pandas and browsers, expect it."""
    code = "import sys, pathlib; from trainyard.utils.csv_files import write_table; import pandas\n"
    code += "write_table(pandas.DataFrame({'tag': ['\\u03b1 \\u2026']}), pathlib.Path(sys.argv[1]))"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "t.csv")]
    subprocess.run(command, env={**os.environ, **locale, "PYTHONPATH": str(SCRIPTS)}, check=True)
    assert (tmp_path / "t.csv").read_bytes().decode("utf-8") == "tag\n\u03b1 \u2026\n"


def test_a_write_replaces_the_file(tmp_path):
    path = tmp_path / "new" / "table.csv"
    with atomic_write(path) as file:
        file.write("new")
    assert path.read_text() == "new"
