"""The embedded demo: `make run` on config/config.yaml, without the deeper half of its models."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml
from nbclient import NotebookClient
from slurm_cluster.waiting import PATIENCE_SECONDS
from yard import ROOT, Yard


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Yard:
    """The finished demo with its report, which tests do not modify; `run.txt` is the output of its run."""
    yard = Yard(tmp_path_factory.mktemp("demo"))
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    config["sweeps"]["depth"]["grid"]["model_args.blocks"]["stop"] = 40
    yard.write(config)
    (yard.folder / "run.txt").write_text(yard.snakemake())
    yard.snakemake("--report", "report.html")
    return yard


def test_the_demo_learns(demo):
    trials = pd.read_csv(demo.results / "sweeps/depth/trials.csv")
    assert trials["model_args.blocks"].tolist() == list(range(4, 41, 4))
    assert trials["val_accuracy"].between(0.85, 1).all()
    scaling = pd.read_csv(demo.results / "scaling/width/scaling.csv")
    assert scaling["val_accuracy"].between(0.95, 1).all()
    trees = pd.read_csv(demo.results / "trees/digits/trees.csv")
    assert trees["val"].between(0.93, 1).all()
    assert (demo.folder / "report.html").stat().st_size > 100_000


def test_the_demo_ends_with_a_summary(demo):
    output, trials = (demo.folder / "run.txt").read_text(), pd.read_csv(demo.results / "sweeps/depth/trials.csv")
    best = trials.loc[trials["val_accuracy"].idxmax()]
    assert output.count("Trainyard: done after ") == 1
    summary = output.partition("Trainyard: done after ")[2]
    for line in (
        "  finished  dataset digits, sweep depth, scaling width (1x1, 1x2), trees digits\n",
        "  answers   sweep depth: 10 trials finished, 0 failed\n",
        f"best val_accuracy (highest): {best['val_accuracy']:.6g}, by trial {best['trial']} with model_args.blocks = ",
        "its config: results/sweeps/depth/best.yaml\n",
        "scaling width: There is no recommendation: measurements on CPUs",
        f"  results   {demo.results}: ",
        f"write the report: {Path(demo.snakemake_command()[0]).name} ",
        "best.yaml -- scaling\n",
    ):
        assert line in summary


def test_the_example_notebook_runs_on_the_demo(demo, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(demo.folder / "ipython"))
    examples = demo.folder / "examples"
    examples.mkdir()
    (demo.folder / "scripts").symlink_to(ROOT / "scripts")
    notebook = nbformat.read(ROOT / "examples/results.ipynb", as_version=4)
    resources = {"metadata": {"path": str(examples)}}
    NotebookClient(notebook, timeout=PATIENCE_SECONDS, resources=resources).execute()
    trials = pd.read_csv(demo.results / "sweeps/depth/trials.csv")
    best = trials.loc[trials["val_accuracy"].idxmax(), "trial"]
    assert best in str(notebook.cells), "the best trial, from load_sweep"
    assert "on CPUs: says nothing of GPUs" in str(notebook.cells), "the verdict, from load_study"
