"""Tables of the report sort, filter and highlight the best row in a browser without network."""

import io

import pandas as pd
import pytest
from browser import PALE_TEXTS, THEMES, WIDTHS, opened, wait_for_tables
from playwright.sync_api import expect
from trainyard.report import pages
from trainyard.report.pages import ReportTable, StudyPage, write_page
from trainyard.report.study_pages import scaling_study
from written_results import write_scaling_results

COUNT = 162
TRIALS = pd.DataFrame(
    {
        "trial": [f"t{number:03}" for number in range(COUNT)],
        "lr": [10.0 ** -(1 + number % 5) for number in range(COUNT)],
        "model": ["<b>bold</b>" if number % 2 else "resnet" for number in range(COUNT)],
        "nothing": None,
        "val_accuracy": [None if number == 7 else number / COUNT for number in range(COUNT)],
    }
)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    write_page(
        [StudyPage("sweeps: depth", parts={"": "The best of all.", "Trials": ReportTable(TRIALS, best=COUNT - 1)})],
        path,
    )
    return path


def column(page, number):
    return page.locator(f".dataTable tbody td:nth-child({number})").all_inner_texts()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_sorts_filters_and_highlights(browser, page_file, width):
    with opened(browser, page_file, width=width) as page:
        wait_for_tables(page)
        assert [name for name in page.locator("thead").first.inner_text().split() if name] == [
            "trial", "lr", "model", "val_accuracy"]  # fmt: skip
        assert column(page, 1)[:2] == ["t000", "t001"]
        header = page.locator("thead th", has_text="val_accuracy").first
        for first in ("t007", "t161"):
            header.click()
            expect(page.locator(".dataTable tbody td").first).to_have_text(first)
        assert column(page, 1)[:2] == ["t161", "t160"]
        assert page.locator("td.best").all_inner_texts() == ["t161", "0.01", "<b>bold</b>", "0.9938"]
        page.get_by_role("searchbox").first.fill("t007")
        expect(page.locator(".dataTable tbody tr")).to_have_count(1)
        assert column(page, 1) == ["t007"]
        assert column(page, 4) == [""], "a missing value is empty"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "only the table scrolls"


@pytest.mark.parametrize("theme", THEMES)
def test_a_table_is_legible_in_both_themes(browser, page_file, theme):
    with opened(browser, page_file, width=WIDTHS[0], theme=theme) as page:
        wait_for_tables(page)
        assert page.evaluate(PALE_TEXTS) == []
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (shade == "rgb(255, 255, 255)") == (theme == "light")


def test_the_csv_button_saves_what_the_table_shows_with_all_digits(browser, page_file):
    with opened(browser, page_file, width=WIDTHS[0]) as page:
        wait_for_tables(page)
        for term, rows in {"": TRIALS, "t00": TRIALS.head(10)}.items():
            page.get_by_role("searchbox").first.fill(term)
            with page.expect_download() as download:
                page.get_by_role("button", name="CSV").click()
            assert download.value.suggested_filename == "sweeps-depth-trials.csv"
            saved = pd.read_csv(io.StringIO(download.value.path().read_text()))
            pd.testing.assert_frame_equal(saved, rows.drop(columns="nothing"), check_dtype=False)


def test_where_no_script_runs_a_table_says_what_it_needs(page_file):
    text = page_file.read_text()
    assert (text.count("The table needs JavaScript."), text.count("Loading ITables")) == (1, 0)


def test_a_page_has_the_first_rows_of_a_large_table_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MAX_ROWS", 100)
    tables = {"Trials": ReportTable(TRIALS, best=0), "Few": ReportTable(TRIALS.head(100))}
    write_page([StudyPage("s", parts=tables)], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("The first 100 of 162 rows; the CSV file of this table has all.") == 1
    assert "t099" in text
    assert "t100" not in text


HOSTILE = "</script><img src=x onerror=\"document.title='run'\">a&b"


def test_names_and_values_of_users_are_text(browser, tmp_path):
    rows = pd.DataFrame({HOSTILE: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "text": [HOSTILE, "&amp;", "<!--", "'", '"', "${x}"]})
    write_page([StudyPage(HOSTILE, parts={HOSTILE: ReportTable(rows, best=0)})], tmp_path / "p.html")
    with opened(browser, tmp_path / "p.html", width=WIDTHS[0]) as page:
        wait_for_tables(page)
        assert page.title() == HOSTILE
        assert page.locator("h3").inner_text() == HOSTILE
        assert column(page, 2) == list(rows["text"])
        page.evaluate("document.querySelectorAll('thead button').forEach(each => each.click())")
        assert HOSTILE in page.locator("thead").first.inner_text()
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        assert sorted(pd.read_csv(download.value.path())["text"]) == sorted(rows["text"])
        assert page.title() == HOSTILE, "nothing was run"


def test_a_table_without_rows_says_so(browser, tmp_path):
    empty = ReportTable(pd.DataFrame(columns=["trial", "why"]))
    write_page([StudyPage("sweeps: s", parts={"Stopped early": empty})], tmp_path / "p.html")
    with opened(browser, tmp_path / "p.html", width=WIDTHS[0]) as page:
        wait_for_tables(page)


def test_the_library_of_the_tables_adds_little_to_a_page(page_file, tmp_path):
    write_page([StudyPage("two", parts={"a": ReportTable(TRIALS), "b": ReportTable(TRIALS)})], tmp_path / "two.html")
    one, two = page_file.stat().st_size, (tmp_path / "two.html").stat().st_size
    assert one < 500_000
    assert two - one < 100_000, "the library is in the page once"


def test_the_same_tables_give_the_same_page(page_file, tmp_path):
    parts = {"": "The best of all.", "Trials": ReportTable(TRIALS, best=COUNT - 1)}
    write_page([StudyPage("sweeps: depth", parts=parts)], tmp_path / "p")
    assert (tmp_path / "p").read_bytes() == page_file.read_bytes()


def test_a_scaling_study_is_one_table_with_a_column_per_scale(browser, tmp_path):
    columns = {"val_own_metric": 0.5, "step_ms_p50": 210.0, "repeats": 1, "gpus": [1, 128], "gpu_hours_increase": 0.1}
    verdict = ["", "recommended: best time for at most 20% more GPU-hours"]
    columns |= {"device": "H200", "verdict": verdict, "cost": None, "recommended": [False, True]}
    config = write_scaling_results(tmp_path, {"1x1": [9.0], "16x8": [2.0]}, **columns)
    write_page([scaling_study(config, "wide", tmp_path)], tmp_path / "s.html")
    for width in WIDTHS:
        with opened(browser, tmp_path / "s.html", width=width) as page:
            assert page.locator("table").count() == 1
            assert page.locator("thead th").all_inner_texts() == ["scale", "1x1", "16x8"]
            assert page.get_by_role("row", name="step p50 (ms)").locator("td").all_inner_texts() == ["210", "210"]
            assert page.get_by_role("row", name="val own metric").locator("td").all_inner_texts() == ["0.5", "0.5"]
            assert page.locator("tr", has_text="cost").count() == 0, "not known"
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_long_names_of_columns_do_not_make_a_table_wide(browser, tmp_path):
    """Beside the menu of a report on a screen of 1,280 pixels."""
    names = ("net.width_of_the_hidden_layers", "optimizer.name", "val_loss_mean", "is_incomplete")
    frame = pd.DataFrame({f"{name}_{number}": range(5) for number in range(2) for name in names})
    write_page([StudyPage("sweeps: s", parts={"Trials": ReportTable(frame)})], tmp_path / "s.html")
    with opened(browser, tmp_path / "s.html", width=900) as page:
        wait_for_tables(page)
        assert page.locator(".dt-scroll-body").evaluate("each => each.scrollWidth - each.clientWidth") <= 0
        assert page.locator("th").first.inner_text().strip() == "net.width_of_the_hidden_layers_0"
