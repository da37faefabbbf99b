"""Documents stay short: each has a budget of words, and so have all of them together.

A word has a letter or a digit; code counts. To add something, tell something else shorter, or once instead of twice.
"""

import re

import pytest
from project import ROOT

BUDGETS = {
    "README.md": 650,
    "CONTRIBUTING.md": 1100,
    "config/README.md": 910,
    "docs/architecture.md": 1800,
    "docs/compare.md": 700,
    "docs/data.md": 600,
    "docs/faults.md": 600,
    "docs/glossary.md": 415,
    "docs/gpu.md": 400,
    "docs/gpus-and-jobs.md": 1400,
    "docs/install.md": 800,
    "docs/json.md": 330,
    "docs/programs.md": 250,
    "docs/quickstart.md": 860,
    "docs/results.md": 2200,
    "docs/scaling.md": 800,
    "docs/security.md": 520,
    "docs/slurm.md": 2280,
    "docs/sweeps.md": 2300,
    "docs/trackers.md": 520,
    "docs/training.md": 1520,
    "docs/trees.md": 280,
    "docs/troubleshooting.md": 1860,
    "docs/your-script.md": 2830,
}
APART = {"docs/options.md", "benchmarks/README.md"}  # generated; a record of measurements
ALL = 24_000


def words(page: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in (ROOT / page).read_text().split())


@pytest.mark.parametrize("page", BUDGETS)
def test_a_page_keeps_to_its_budget(page):
    assert words(page) <= BUDGETS[page]


def test_every_page_has_a_budget_and_all_pages_together_keep_to_theirs():
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")} | {
        "README.md",
        "config/README.md",
    }
    assert pages - APART == BUDGETS.keys() - {"CONTRIBUTING.md"}
    assert sum(map(words, pages - APART)) <= ALL
    assert words("benchmarks/README.md") <= 2500
