"""The embedded demo, config/config.yaml: what it learns, its summary, the notebook on its results, its report."""

import subprocess
import sys

import nbformat
import pandas as pd
import pytest
from browser import PALE_TEXTS, THEMES, WIDTHS, opened, wait_for_tables
from nbclient import NotebookClient
from playwright.sync_api import Locator, Page, expect
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS


def test_the_demo_learns(done):
    trials = pd.read_csv(done.results / "sweeps/depth/trials.csv")
    assert trials["model_args.blocks"].tolist() == [4, 5, 6, 7, 8, 12]
    assert trials["val_accuracy"].between(0.85, 1).all()
    scaling = pd.read_csv(done.results / "scaling/width/scaling.csv")
    assert scaling["val_accuracy"].between(0.95, 1).all()
    trees = pd.read_csv(done.results / "sweeps/trees/trials.csv")
    assert trees["library"].tolist() == ["xgboost", "lightgbm"]
    assert trees["threads"].tolist() == [2, 2], "all CPUs of the slot"
    assert trees["val_accuracy"].between(0.93, 1).all()


def test_the_demo_ends_with_a_summary(done):
    output, trials = (done.folder / "run.txt").read_text(), pd.read_csv(done.results / "sweeps/depth/trials.csv")
    best = trials.loc[trials["val_accuracy"].idxmax()]
    assert output.count("Trainyard: done after ") == 1
    summary = output.partition("Trainyard: done after ")[2]
    for line in (
        "  finished  dataset digits, dataset prices, dataset tiny, sweep depth, sweep lr, sweep prices, sweep trees, ",
        ", and 1 more\n",
        "  answers   sweep depth: 6 trials finished, 0 failed\n",
        f"best val_accuracy (highest): {best['val_accuracy']:.6g} at its last epoch, 5 of 5, by trial {best['trial']} ",
        "its config: results/sweeps/depth/best.yaml\n",
        "scaling width: There is no recommendation: measurements on CPUs",
        f"  results   {done.results}: ",
        "write the report: trainyard report --config ",
        "/results/sweeps/depth/best.yaml' -- scaling\n",
    ):
        assert line in summary


@pytest.mark.slow
def test_the_example_notebook_runs_on_the_demo(done, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    examples = tmp_path / "examples"
    examples.mkdir()
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / "results").symlink_to(done.results)
    notebook = nbformat.read(ROOT / "examples/results.ipynb", as_version=4)
    resources = {"metadata": {"path": str(examples)}}
    NotebookClient(notebook, timeout=PATIENCE_SECONDS, startup_timeout=PATIENCE_SECONDS, resources=resources).execute()
    trials = pd.read_csv(done.results / "sweeps/depth/trials.csv")
    best = trials.loc[trials["val_accuracy"].idxmax(), "trial"]
    assert best in str(notebook.cells), "the best trial, from load_sweep"
    assert "on CPUs: says nothing of GPUs" in str(notebook.cells), "the verdict, from load_study"


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
def test_the_page_of_trainyard_has_all_studies_and_fits_the_screen(done, browser, tmp_path, theme):
    call = [
        sys.executable,
        ROOT / "scripts/report.py",
        "--config",
        done.folder / "config.yaml",
        "--results",
        done.results,
    ]
    said = subprocess.run(call, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert f"the report: {tmp_path}/report.html" in said
    for width in WIDTHS:
        with opened(browser, tmp_path / "report.html", width=width, theme=theme) as page:
            page.wait_for_function(
                "[...document.querySelectorAll('.charts')].every(each => each.closest('details') || each.view)"
            )
            assert page.locator("article h2").all_inner_texts()[:1] == ["Sweep depth"]
            page.locator("details").first.evaluate("each => { each.open = true; }")
            page.wait_for_function("document.querySelector('details .charts').view")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(PALE_TEXTS) == []
            for row in page.locator("table.leaders").first.locator("tbody tr").all():
                assert row.locator("td").count() == 4, "the best and the next three"


# ---- the report in a browser


@pytest.fixture(scope="module", params=WIDTHS)
def report(done, browser, request):
    """The report at one width, which the tests share."""
    with opened(browser, done.folder / "report.html", width=request.param) as page:
        yield page


def show_first_page(report: Page) -> None:
    report.evaluate("app.setView({navbarMode: 'menu', content: 'rulegraph'})")


def is_drawn(picture: Locator) -> bool:
    return picture.evaluate("async each => { await each.decode(); return each.naturalWidth > 100; }")


@pytest.mark.slow
def test_the_report_answers_on_its_first_page(report):
    show_first_page(report)
    overview = report.locator(".trainyard")
    expect(overview).to_contain_text("Sweep depth")
    expect(report.locator(".prose").first).to_contain_text("All plots and tables of this report")
    expect(report.locator(".prose").first).not_to_contain_text("`_")
    for text in (
        "val_accuracy (highest)",
        "6 trials: 6 finished",
        "as a job array",
        "these trials take at least",
        "Scaling width",
        "There is no recommendation",
        "Sweep trees",
    ):
        expect(overview).to_contain_text(text)
    pictures = overview.locator("img").all()
    assert [is_drawn(picture) for picture in pictures] == [True] * 6, "the metric of each sweep, each speedup"
    first = overview.locator("section").first.inner_text()
    order = [first.index(text) for text in ("val_accuracy (highest)", "What to do next", "wasted")]
    assert order == sorted(order)
    if (graph := report.locator("#app #rulegraph")).count():
        assert graph.bounding_box()["y"] > report.viewport_size["height"], "the drawing of the rules is not seen first"
    box = overview.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= report.viewport_size["width"], "it is read without scrolling sideways"


@pytest.mark.slow
def test_the_menu_of_the_report_is_in_the_order_of_interest(report):
    show_first_page(report)
    menu = report.locator("nav.h-screen")
    names = menu.locator("ul").inner_text().split("RESULTS")[1].split("\n")
    assert [name.strip() for name in names if name.strip()] == [
        "Overview", "Sweeps", "Scaling", "Data"]  # fmt: skip
    menu.get_by_text("Sweeps", exact=True).click()
    menu.get_by_text("depth", exact=True).click()
    assert menu.locator("tbody td:nth-child(2)").all_inner_texts() == [
        "trials: charts and table", "metric against each varied key", "curves over epochs", "slots over time",
        "requested and wasted time", "predicted and measured durations"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
def test_the_first_page_of_the_report_is_legible_in_both_themes(done, browser, theme):
    with opened(browser, done.folder / "report.html", width=WIDTHS[0], theme=theme) as page:
        expect(page.locator(".trainyard")).to_be_visible()
        assert page.locator(".prose:has(.trainyard)").evaluate(PALE_TEXTS) == []


@pytest.mark.slow
def test_every_entry_of_the_report_opens_in_a_browser(report):
    for path, entry in report.evaluate("results").items():
        report.evaluate("path => app.showResultInfo(path)", path)  # what links in captions call
        expect(report.locator("nav.h-screen")).to_contain_text("Description")
        report.locator("nav.h-screen table a").first.click()
        if path.endswith(".svg"):
            picture = report.locator(".grow img")
            expect(picture).to_have_attribute("src", entry["data_uri"])
            assert is_drawn(picture), path
        else:
            frame = report.locator("iframe")
            expect(frame).to_have_attribute("src", entry["data_uri"])
            wait_for_tables(frame.element_handle().content_frame())


@pytest.mark.slow
@pytest.mark.parametrize("report", WIDTHS[:1], indirect=True)
def test_a_table_of_the_report_sorts_and_filters(report):
    show_first_page(report)
    report.get_by_role("link", name="Sweeps").last.click()  # a link of the first page
    report.locator("nav.h-screen").get_by_text("depth", exact=True).click()
    report.locator("nav tr", has_text="trials: charts and table").locator("a").first.click()
    table = report.frame_locator("iframe")
    cells = table.locator("table.trials[id] tbody td:nth-child(3)")
    expect(cells).to_have_count(6)
    for first in ("4", "12"):
        table.locator("table.trials .dt-column-title", has_text="blocks").first.click()
        expect(cells.first).to_have_text(first)
    table.locator(".charts canvas").first.wait_for()
    with report.expect_download() as saved:
        table.get_by_role("button", name="CSV").first.click()
    assert len(pd.read_csv(saved.value.path())) == 6
    table.get_by_role("searchbox").first.fill("12345nothing")
    expect(table.locator("table.trials[id] tbody tr")).to_have_text(["No matching records found"])
