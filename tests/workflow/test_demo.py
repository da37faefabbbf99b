"""The embedded demo: `make run` on config/config.yaml."""

import pandas as pd
from yard import ROOT


def test_the_demo_learns(yard):
    yard.config_file = ROOT / "config/config.yaml"
    yard.snakemake()
    yard.snakemake("--report", "report.html")
    trials = pd.read_csv(yard.results / "sweeps/depth/trials.csv")
    assert trials["model_args.blocks"].tolist() == list(range(4, 81, 4))
    assert trials["val_accuracy"].between(0.85, 1).all()
    scaling = pd.read_csv(yard.results / "scaling/width/scaling.csv")
    assert scaling["val_accuracy"].between(0.95, 1).all()
    trees = pd.read_csv(yard.results / "trees/digits/trees.csv")
    assert trees["val"].between(0.93, 1).all()
    assert (yard.folder / "report.html").stat().st_size > 100_000
