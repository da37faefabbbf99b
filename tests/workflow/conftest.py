"""A finished run of the demo and everything that it lacks, which several files of tests look at."""

import shutil

import numpy as np
import pandas as pd
import pytest
from project import FULL, ROOT, Project

# Braces in the path of the clone are wildcards for Snakemake; it looks for an absolute path of a profile by a pattern.
ODD = 'a b\'s "work" in $HOME; é \\n %s # &'


@pytest.fixture(scope="session")
def done(tmp_path_factory) -> Project:
    """A finished run of FULL with its report, which tests do not modify, in folders with odd names.

    `run.txt` is the output of the run.
    """
    folder, clone = tmp_path_factory.mktemp("done") / f"{ODD} {{x}} [y] *", tmp_path_factory.mktemp("clone") / ODD
    folder.mkdir()
    for name in ("workflow", "scripts", "profiles", "envs"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "pyproject.toml"):
        shutil.copy(ROOT / name, clone)
    project = Project(folder, clone)
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"size": generator.normal(size=60), "price": generator.normal(size=60)})
    frame.to_csv(project.folder / "prices.csv", index=False)
    project.write(FULL)
    (project.folder / "run.txt").write_text(project.snakemake())
    project.snakemake("--report", "report.html", "--report-stylesheet", str(ROOT / "workflow/report/report.css"))
    return project
