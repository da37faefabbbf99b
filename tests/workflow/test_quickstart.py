"""docs/quickstart.md works as written: its files are created, its commands run, its output compared."""

import re

import pytest
from project import INSTALLED, ROOT

pytestmark = pytest.mark.slow

# What differs between runs: times and other numbers, the trial that is the best, ASHA's decisions, paths.
VARYING = {
    r", about .* left": "",
    r"(\d+ h )?(\d+ min )?[\d.]+ s\b": "0 s",
    r"\d+\.?\d*%?": "0",
    r"by trial .*": "by trial",
    r"(its files|by hand): .*": r"\1",
    r"first: .*": "first:",
    r"\] .*?; asha: .*": "]",
    r"\[0/0\] \w+ lr=0, width=0: 0 s, val_acc 0( at epoch 0)?": "[0/0]",
    r"\d+ trials? finished, \d+ stopped early": "finished, stopped early",
    r"  +": " ",
}
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone(project):
    """A folder like a clone of the repository, without results."""
    for name in ("Snakefile", "workflow", "scripts", "profiles", "config", ".venv"):
        (project.folder / name).symlink_to(ROOT / name)
    return project


def stable(text):
    for pattern, replacement in VARYING.items():
        text = re.sub(pattern, replacement, text)
    return text


def test_the_commands_of_the_quickstart_print_its_output(clone):
    output = ""
    blocks = BLOCK.findall((ROOT / "docs/quickstart.md").read_text())
    assert {kind for kind, _, _ in blocks} == {"python", "yaml", "sh", "text"}
    for kind, name, text in blocks:
        if kind == "sh":
            done = clone.run("bash", "-euc", INSTALLED + text)
            output = done.stdout + done.stderr
        elif kind == "text":
            missing = [line for line in text.splitlines() if stable(line) not in stable(output)]
            assert not missing, output
        else:
            path = clone.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
