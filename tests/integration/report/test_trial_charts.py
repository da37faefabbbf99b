"""The charts on the page of a sweep: hovering tells of a trial, a selection filters the table, in a real browser."""

import io

import pandas as pd
import pytest
from browser import PALE_TEXTS, THEMES, WIDTHS, opened, wait_for_tables
from playwright.sync_api import Page, expect
from trainyard.report.study_pages import write_study_page
from trainyard.utils.csv_files import read_table, write_table
from written_results import DIVERGED, FAILED, finished, write_results

SWEEP = {"grid": {"net.lr": [0.001, 0.01, 0.1, 1.0], "net.name": ["a", "<b>b</b>"]}, "metric": "rmse", "mode": "min"}
ENDS = [finished(8.0), finished(7.0), finished(6.0), finished(5.0), finished(4.0), finished(3.0), FAILED, DIVERGED]
# Where the marks of a trial are in the picture.
PLACES = """async (trial) => {
    const {view} = document.querySelector(".charts");
    const found = [];
    const walk = (item, x, y) => {
        if (item.datum?.trial === trial && item.mark.marktype === "symbol") found.push([x + item.x, y + item.y]);
        const [right, down] = item.mark ? [item.x ?? 0, item.y ?? 0] : [0, 0];
        for (const each of item.items ?? []) walk(each, x + right, y + down);
    };
    const [[x, y], {left, top}] = [view.origin(), view.padding()];
    walk(view.scenegraph().root, x + left, y + top);
    const box = document.querySelector(".charts canvas").getBoundingClientRect();
    return found.map(([x, y]) => [box.x + x, box.y + y]);
}"""


def write_page_of(results, sweep, ends, epochs=4):
    """The page of a sweep with the curves of its trials."""
    config = write_results(results, sweep, ends)
    trials = read_table(results / "sweeps/s/trials.csv")
    curves = trials[["trial"]].merge(pd.DataFrame({"epoch": range(1, epochs + 1)}), how="cross")
    write_table(curves.assign(rmse=1 / curves["epoch"]), results / "sweeps/s/epochs.csv")
    return write_study_page(config, "sweeps", "s", results), trials


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_page_of(tmp_path_factory.mktemp("charts"), SWEEP, ENDS)


def wait_for_charts(page: Page) -> None:
    wait_for_tables(page)
    page.wait_for_function("document.querySelector('.charts').view")


def shown_trials(page: Page) -> set[str]:
    return set(page.locator("table.trials[id] tbody td:nth-child(1)").all_inner_texts())


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_pointing_at_a_trial_shows_its_values(browser, written, width, theme):
    path, trials = written
    with opened(browser, path, width=width, theme=theme) as page:
        wait_for_charts(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(PALE_TEXTS) == []
        box = page.locator(".charts canvas").bounding_box()
        assert box["x"] + box["width"] <= width
        page.mouse.move(*page.evaluate(PLACES, trials["trial"][1])[0])
        tooltip = page.locator("#vg-tooltip-element")
        for text in (trials["trial"][1], "<b>b</b>", "0.001", "7", "finished"):
            expect(tooltip).to_contain_text(text)


def test_a_selection_filters_the_table_and_what_its_button_saves(browser, written):
    path, trials = written
    with opened(browser, path, width=WIDTHS[0]) as page:
        wait_for_charts(page)
        assert shown_trials(page) == set(trials["trial"])
        (x, y), *_ = page.evaluate(PLACES, trials["trial"][5])
        page.mouse.move(x - 20, y - 20)
        page.mouse.down()
        page.mouse.move(x + 15, y + 10, steps=5)
        page.mouse.up()
        expect(page.locator("table.trials[id] tbody tr")).to_have_count(1)
        assert shown_trials(page) == {trials["trial"][5]}
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").first.click()
        saved = pd.read_csv(io.StringIO(download.value.path().read_text()))
        assert saved["trial"].tolist() == [trials["trial"][5]]
        assert saved["lr"].tolist() == [0.1]


def test_a_trial_without_a_key_is_in_no_selection_of_its_values(browser, tmp_path):
    trials = [{"lr": 1, "momentum": -1}, {"lr": 2, "momentum": 1}, {"lr": 3}, {"lr": 4}, {"lr": 5}]
    path, trials = write_page_of(tmp_path, {**SWEEP, "grid": {}, "trials": trials}, [finished(3.0)] * 5)
    with opened(browser, path, width=WIDTHS[0]) as page:
        wait_for_charts(page)
        (_, _, (x, y), *_), (_, _, (other, _), *_) = (
            page.evaluate(PLACES, trials["trial"][number]) for number in (0, 1)
        )
        page.mouse.move(x - 9, y - 20)
        page.mouse.down()
        page.mouse.move(other + 9, y + 20, steps=5)
        page.mouse.up()
        expect(page.locator("table.trials[id] tbody tr")).to_have_count(2)
        assert shown_trials(page) == set(trials["trial"][:2])


@pytest.mark.slow
def test_a_page_of_many_trials_stays_small_and_says_what_it_leaves_out(browser, tmp_path):
    sweep = SWEEP | {
        "grid": {"lr": {"start": 1, "stop": 100, "step": 1}, "width": {"start": 1, "stop": 100, "step": 1}}
    }
    path, _ = write_page_of(tmp_path, sweep, [finished(1.0 + number % 997) for number in range(10_000)], epochs=2)
    assert path.stat().st_size < 1_500_000
    with opened(browser, path, width=WIDTHS[0]) as page:
        wait_for_charts(page)
        expect(page.locator("body")).to_contain_text("The first 1,000 of 10,000 rows")
        assert page.evaluate("document.querySelector('.charts').view.data('trials').length") == 1000


def test_a_sweep_without_a_metric_has_no_charts(browser, tmp_path):
    path, _ = write_page_of(tmp_path, SWEEP, [FAILED] * 8)
    with opened(browser, path, width=WIDTHS[0]) as page:
        wait_for_tables(page)
        expect(page.locator("[data-function=chartSpec]")).to_have_count(0)
