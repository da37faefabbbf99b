"""docs/tutorial.md is run word for word: its files are written, its commands typed, its output compared."""

import re

import pytest
from yard import ROOT

BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone(yard):
    """A folder that looks like Trainyard's, with no results in it."""
    for name in ("Snakefile", "workflow", "scripts", "profiles", "config", ".venv"):
        (yard.folder / name).symlink_to(ROOT / name)
    return yard


def test_the_tutorial_does_what_it_says(clone):
    said = ""
    blocks = BLOCK.findall((ROOT / "docs/tutorial.md").read_text())
    assert {kind for kind, _, _ in blocks} == {"python", "yaml", "sh", "text"}
    for kind, name, text in blocks:
        if kind == "sh":
            done = clone.run("bash", "-euc", text)
            said = done.stdout + done.stderr
        elif kind == "text":
            missing = [line for line in text.splitlines() if line not in said]
            assert not missing, said
        else:
            path = clone.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
