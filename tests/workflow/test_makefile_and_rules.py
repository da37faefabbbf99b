"""What the Makefile prints on a terminal, and the messages of rules."""

import os
import pty
import re
import shutil
import subprocess
import sys

import pytest
from project import ROOT

RULES = [ROOT / "Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]


def on_a_terminal(command, **environment):
    """The output of a command on a pseudo-terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=follower, stderr=follower) as running:
        os.close(follower)
        output = b""
        try:
            while more := os.read(leader, 4096):
                output += more
        except OSError:  # the command has ended
            pass
    os.close(leader)
    assert running.returncode == 0, output
    return output.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(("no_color", "expected"), [("", "\x1b[1m== hello\x1b[0m\n"), ("1", "== hello\n")])
def test_headings_are_bold_unless_no_color_is_set(no_color, expected):
    command = ["make", "--no-print-directory", "--eval", "probe: ; $(say) hello", "probe"]
    assert on_a_terminal(command, NO_COLOR=no_color) == expected


def test_headings_in_a_file_are_plain():
    command = ["make", "--no-print-directory", "--eval", "probe: ; $(say) hello", "probe"]
    assert subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout == "== hello\n"


def test_a_clone_has_the_command_of_all_documents_also_from_another_folder(tmp_path):
    clone, python = tmp_path / "clone of mine", "clone of mine/.venv/bin/python"
    (clone / ".venv/bin").mkdir(parents=True)
    for name in ("scripts", "pyproject.toml"):
        (clone / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "Makefile", clone)
    (tmp_path / python).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / python).chmod(0o755)
    subprocess.run(["make", "--silent", "--old-file=.venv/ready", ".venv/bin/trainyard"], cwd=clone, check=True)
    command = ["bash", "-euc", 'PATH="$PWD/clone of mine/.venv/bin:$PATH"; trainyard --version; trainyard check --help']
    said = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True).stdout
    assert said.startswith("trainyard 0.1.0\nusage: trainyard check")


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_every_rule_has_a_message(path):
    blocks = re.split(r"^ *rule\b", path.read_text(), flags=re.MULTILINE)[1:]
    for block in blocks:
        assert re.search(r"^ +message:", block, re.MULTILINE), block.splitlines()[0]
