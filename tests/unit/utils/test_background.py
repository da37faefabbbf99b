"""Work in a thread that nobody waits for at the end."""

import subprocess
import sys

import pytest
from project import ROOT
from trainyard.utils.background import in_background


def test_the_future_has_what_the_function_returns_or_raises():
    assert in_background(lambda: 2).result(timeout=10) == 2
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0).result(timeout=10)


def test_a_process_ends_although_its_main_thread_was_interrupted_while_it_imported():
    code = """
import _imp, importlib, sys
from trainyard.utils.background import in_background
_imp.acquire_lock()  # as `import` does; a signal may come before the block that releases it
in_background(lambda: importlib.import_module("wave"))
sys.exit(130)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts", timeout=30)
    assert done.returncode == 130
