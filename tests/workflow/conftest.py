"""A finished run of the demo and everything that it lacks, which several files of tests look at."""

import shutil

import numpy as np
import pandas as pd
import pytest
from yard import FULL, ROOT, Yard

# Braces in the path of the clone are wildcards for Snakemake; it looks for an absolute path of a profile by a pattern.
ODD = 'a b\'s "work" in $HOME; é \\n %s # &'


@pytest.fixture(scope="session")
def done(tmp_path_factory) -> Yard:
    """A finished run of FULL with its report, which tests do not modify, in folders with odd names.

    `run.txt` is the output of the run.
    """
    folder, clone = tmp_path_factory.mktemp("done") / f"{ODD} {{x}} [y] *", tmp_path_factory.mktemp("clone") / ODD
    folder.mkdir()
    for name in ("workflow", "scripts", "profiles", "envs"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", clone)
    yard = Yard(folder, clone)
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"size": generator.normal(size=60), "price": generator.normal(size=60)})
    frame.to_csv(yard.folder / "prices.csv", index=False)
    yard.write(FULL)
    yard.environment.pop("MAKELEVEL", None)  # `make test` is not `make run`, which writes the report itself
    (yard.folder / "run.txt").write_text(yard.snakemake())
    yard.snakemake("--report", "report.html", "--report-stylesheet", str(ROOT / "workflow/report/report.css"))
    return yard
