"""The report's first page and the pages of tables fit the screen, whatever a run has left."""

from itertools import product

import pytest
from browser import PALE_TEXTS, THEMES, WIDTHS, opened, wait_for_tables
from trainyard.report.overview import summarize_studies, write_overview
from trainyard.report.study_pages import write_study_page
from written_results import DIVERGED, FAILED, GRID, finished, write_results, write_scaling_results

LONG = "a_key_with_a_name_that_is_longer_than_any_column_should_be"
MANY = {"grid": {"lr": list(range(1, 55)), LONG: ["x" * 60, "y", "z"]}, "metric": "rmse", "mode": "min"}
SWEEPS = {
    "many trials and long names": (MANY, [finished(1 + number % 50) for number in range(150)] + [FAILED] * 12),
    "failed and diverged trials": (GRID, [finished(3.0), FAILED, DIVERGED, finished(2.0)]),
    "only failed trials": (GRID, [FAILED] * 4),
    "no trials yet": (GRID, []),
    "one trial": ({"grid": {"lr": [1]}}, [finished(3.0)]),
}


def test_a_run_that_is_half_done_has_a_page_that_says_what_is_missing(tmp_path, browser):
    config = write_results(tmp_path, GRID, [finished(3.0), FAILED])
    for table in (tmp_path / "sweeps/s").glob("*.csv"):
        table.unlink()
    wide = write_scaling_results(tmp_path, {"1x1": [9.0], "1x2": [9.0]})
    (tmp_path / "scaling/wide/scaling.csv").unlink()
    (tmp_path / "scaling/wide/1x2/summary.json").unlink()
    whole = config.model_copy(update={"scaling": wide.scaling})
    sweep, scaling = summarize_studies(whole, tmp_path)
    assert "best rmse (lowest): 3" in sweep.answer
    assert sweep.facts["so far"] == "1 trial finished, 1 failed, 2 to run"
    assert any("RuntimeError: <b>bad</b>" in line for line in sweep.failures)
    assert "Run the same command, `trainyard run`, for 2 trials without a result." in sweep.next_steps
    assert scaling.facts["so far"] == "1 of 2 scales trained: 1x1"
    assert scaling.answer == "no result yet"
    for each in (sweep, scaling):
        assert each.facts["missing"].startswith("tables and plots: run the same command again")
    for width, theme in product(WIDTHS, THEMES):
        with opened(browser, write_overview(whole, tmp_path), width=width, theme=theme) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(PALE_TEXTS) == []


@pytest.mark.parametrize(("sweep", "ends"), SWEEPS.values(), ids=SWEEPS)
def test_any_sweep_has_pages_that_fit_the_screen(tmp_path, browser, sweep, ends):
    config = write_results(tmp_path, sweep, ends)
    for width in WIDTHS if len(ends) > 100 else WIDTHS[-1:]:
        for path in (write_overview(config, tmp_path), write_study_page(config, "sweeps", "s", tmp_path)):
            with opened(browser, path, width=width) as page:
                wait_for_tables(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert "NaN" not in page.inner_text("body")
