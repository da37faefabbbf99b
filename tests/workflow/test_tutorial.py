"""docs/tutorial.md works as written: its files are created, its commands run, its output compared."""

import re

import pytest
from yard import ROOT

BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone(yard):
    """A folder like a clone of the repository, without results."""
    for name in ("Snakefile", "workflow", "scripts", "profiles", "config", ".venv"):
        (yard.folder / name).symlink_to(ROOT / name)
    return yard


def test_the_commands_of_the_tutorial_print_its_output(clone):
    output = ""
    blocks = BLOCK.findall((ROOT / "docs/tutorial.md").read_text())
    assert {kind for kind, _, _ in blocks} == {"python", "yaml", "sh", "text"}
    for kind, name, text in blocks:
        if kind == "sh":
            done = clone.run("bash", "-euc", text)
            output = done.stdout + done.stderr
        elif kind == "text":
            missing = [line for line in text.splitlines() if line not in output]
            assert not missing, output
        else:
            path = clone.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
