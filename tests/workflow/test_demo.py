"""The embedded demo: `make run` on config/config.yaml, with six of its twenty models, and its report."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml
from browser import WIDTHS, opened, wait_for_tables
from nbclient import NotebookClient
from playwright.sync_api import Locator, expect
from slurm_cluster.waiting import PATIENCE_SECONDS
from yard import ROOT, Yard


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Yard:
    """The finished demo with its report, which tests do not modify; `run.txt` is the output of its run."""
    yard = Yard(tmp_path_factory.mktemp("demo"))
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    config["sweeps"]["depth"]["grid"]["model_args.blocks"] = [4, 8, 12, 16, 20, 40]
    yard.write(config)
    yard.environment.pop("MAKELEVEL", None)  # `make test` is not `make run`, which writes the report itself
    (yard.folder / "run.txt").write_text(yard.snakemake())
    yard.snakemake("--report", "report.html", "--report-stylesheet", str(ROOT / "workflow/report/report.css"))
    return yard


def test_the_demo_learns(demo):
    trials = pd.read_csv(demo.results / "sweeps/depth/trials.csv")
    assert trials["model_args.blocks"].tolist() == [4, 8, 12, 16, 20, 40]
    assert trials["val_accuracy"].between(0.85, 1).all()
    scaling = pd.read_csv(demo.results / "scaling/width/scaling.csv")
    assert scaling["val_accuracy"].between(0.95, 1).all()
    trees = pd.read_csv(demo.results / "trees/digits/trees.csv")
    assert trees["val"].between(0.93, 1).all()


def test_the_demo_ends_with_a_summary(demo):
    output, trials = (demo.folder / "run.txt").read_text(), pd.read_csv(demo.results / "sweeps/depth/trials.csv")
    best = trials.loc[trials["val_accuracy"].idxmax()]
    assert output.count("Trainyard: done after ") == 1
    summary = output.partition("Trainyard: done after ")[2]
    for line in (
        "  finished  dataset digits, sweep depth, scaling width (1x1, 1x2), trees digits\n",
        "  answers   sweep depth: 6 trials finished, 0 failed\n",
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
    NotebookClient(notebook, timeout=PATIENCE_SECONDS, startup_timeout=PATIENCE_SECONDS, resources=resources).execute()
    trials = pd.read_csv(demo.results / "sweeps/depth/trials.csv")
    best = trials.loc[trials["val_accuracy"].idxmax(), "trial"]
    assert best in str(notebook.cells), "the best trial, from load_sweep"
    assert "on CPUs: says nothing of GPUs" in str(notebook.cells), "the verdict, from load_study"


# ---- the report in a browser


def is_drawn(picture: Locator) -> bool:
    return picture.evaluate("async each => { await each.decode(); return each.naturalWidth > 100; }")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_answers_on_its_first_page(demo, browser, width):
    with opened(browser, demo.folder / "report.html", width=width) as page:
        overview = page.locator(".trainyard")
        expect(overview).to_contain_text("Sweep depth")
        for text in (
            "best val_accuracy (highest)",
            "6 trials: 6 finished",
            "as a job array",
            "lower bound",
            "Scaling width",
            "There is no recommendation",
            "best validation accuracy",
        ):
            expect(overview).to_contain_text(text)
        pictures = overview.locator("img").all()
        assert [is_drawn(picture) for picture in pictures] == [True, True], "the packing, and the speedup"
        box = overview.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width, "it is read without scrolling sideways"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_entry_of_the_report_opens_in_a_browser(demo, browser, width):
    with opened(browser, demo.folder / "report.html", width=width) as page:
        for path, entry in page.evaluate("results").items():
            page.evaluate("path => app.showResultInfo(path)", path)  # what links in captions call
            expect(page.locator("nav.h-screen")).to_contain_text("Description")
            page.locator("nav.h-screen table a").first.click()
            if path.endswith(".svg"):
                picture = page.locator(".grow img")
                expect(picture).to_have_attribute("src", entry["data_uri"])
                assert is_drawn(picture), path
            else:
                frame = page.locator("iframe")
                expect(frame).to_have_attribute("src", entry["data_uri"])
                wait_for_tables(frame.element_handle().content_frame())


def test_a_table_of_the_report_sorts_and_filters(demo, browser):
    with opened(browser, demo.folder / "report.html", width=1400) as page:
        page.get_by_role("link", name="Sweeps").last.click()  # a link of the first page
        page.locator("nav tr", has_text="table of trials").locator("a").first.click()
        table = page.frame_locator("iframe")
        cells = table.locator("#table-1 tbody td:nth-child(2)")
        expect(cells).to_have_count(6)
        for first in ("4", "40"):
            table.locator("th", has_text="model_args.blocks").first.click()
            expect(cells.first).to_have_text(first)
        table.get_by_role("searchbox").first.fill("12345nothing")
        expect(table.locator("#table-1 tbody tr")).to_have_text(["No matching records found"])
