"""The embedded demo: `make run` on config/config.yaml, without the deeper half of its models."""

import pandas as pd
import yaml
from yard import ROOT


def test_the_demo_learns(yard):
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    config["sweeps"]["depth"]["grid"]["model_args.blocks"]["stop"] = 40
    yard.write(config)
    yard.snakemake()
    yard.snakemake("--report", "report.html")
    trials = pd.read_csv(yard.results / "sweeps/depth/trials.csv")
    assert trials["model_args.blocks"].tolist() == list(range(4, 41, 4))
    assert trials["val_accuracy"].between(0.85, 1).all()
    scaling = pd.read_csv(yard.results / "scaling/width/scaling.csv")
    assert scaling["val_accuracy"].between(0.95, 1).all()
    trees = pd.read_csv(yard.results / "trees/digits/trees.csv")
    assert trees["val"].between(0.93, 1).all()
    assert (yard.folder / "report.html").stat().st_size > 100_000
