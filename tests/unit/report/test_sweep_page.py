"""The page of a sweep: its answer as a table, its charts and tables, links and commands; and the live page."""

import json
import logging
import re
from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest
import report
from sweep_journals import write_session
from trainyard.config.load import as_given, check_config
from trainyard.planning.history import read_state
from trainyard.report.pages import Charts, ReportTable, write_page
from trainyard.report.study_pages import current_study
from trainyard.report.style import readable_column
from trainyard.report.whole_report import LivePage, write_report
from written_results import FAILED, GRID, finished, write_results, write_scaling_results

COMMAND = {"command": "python train.py --lr {lr}", "grid": {"lr": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, "metric": "val_acc"}


@pytest.fixture
def running(tmp_path, monkeypatch):
    """The config of a sweep by a command of which five trials have finished and one runs, in the working directory."""
    monkeypatch.chdir(tmp_path)
    config = check_config({"sweeps": {"s": {**COMMAND, "metrics": {"pattern": "(?P<val_acc>{number})"}}}})
    folder = tmp_path / "results/sweeps/s"
    folder.mkdir(parents=True)
    names = list(read_state(config.sweeps["s"], "s", tmp_path / "results").trials)
    about = {"slots": 2, "gpus": 2, "nodes": 1, "node": "n1", "job": "local", "pending": 6, "walltime_seconds": 600}
    lines = [{"event": "session", "time": 100.0, **about}]
    for number, name in enumerate(names):
        trial, start = {"trial": name, "attempt": 1}, 101.0 + 10 * number
        lines.append({"event": "started", "time": start, "slot": number % 2, "node": "n1", "gpu": "0", **trial})
        for epoch in (1, 2):
            metrics = {"epoch": epoch, "val_acc": 0.5 + 0.1 * epoch - 0.05 * abs(number - 2)}
            lines.append({"event": "epoch", "time": start + 4 * epoch, "metrics": metrics, **trial})
        if number < 5:
            lines.append({"event": "finished", "time": start + 9, "seconds": 9.0, "metrics": metrics, **trial})
        (folder / "trials" / name).mkdir(parents=True)
    write_session(folder, lines)
    return config, names


def test_the_page_of_a_running_sweep_is_what_its_journal_has(running, tmp_path):
    config, names = running
    study = current_study(config, "s", tmp_path / "results", tmp_path / "tables/page.html")
    assert study.facts["ran"].startswith("6 trials: 5 finished, 1 running")
    assert study.rows[0] == ["", "best", "2.", "3.", "4."]
    assert study.rows[1][:2] == ["val_acc (highest, guessed from its name)", "0.7"]
    assert study.rows[2][:2] == ["learning rate", "0.3"]
    assert study.rows[-1][:2] == ["trial", names[2]]
    assert study.trials[names[2]][0] == f"../results/sweeps/s/trials/{names[2]}"
    assert study.trials[names[2]][1].endswith("python train.py --lr 0.3")
    assert list(study.parts["Trials"].frame)[:2] == ["trial", "val acc"]
    charts = study.parts[""].data
    assert charts["trials"][0]["trial"] == names[2], "best first"
    assert {trial["order"]: trial["record"] for trial in charts["trials"]} == pytest.approx(
        {1: 0.6, 2: 0.65, 3: 0.7, 4: 0.7, 5: 0.7}
    )
    assert charts["curve"] == "val acc", "of the metric that ranks"
    assert {row["trial"] for row in charts["curves"]} == {*names[:5]}
    assert sum(trial["is_best"] for trial in charts["trials"]) == 1
    operations = study.operations[""].data
    assert [name for name, _ in operations["outcomes"]] == ["finished", "running"]
    assert not operations["predictions"], "of fewer than ten trials, they say nothing"
    packed = sum(part["seconds"] for part in operations["parts"] if part["strategy"] == "packed")
    assert packed == pytest.approx(1200), "two GPUs for ten minutes"


def test_a_live_page_has_another_version_once_a_journal_has_grown(running, tmp_path):
    config, names = running
    page, answers = LivePage(config, tmp_path / "results"), []

    def get(path):
        text = page({"PATH_INFO": path}, lambda status, headers: answers.append((status, dict(headers))))
        return b"".join(text).decode()

    version, text = get("/version"), get("/")
    assert "5 finished, 1 running" in text
    assert f'version !== "{version}"' in text
    assert get("/version") == version
    lines = [{"event": "finished", "time": 170.0, "seconds": 9.0, "metrics": {"val_acc": 0.9}}]
    (journal,) = (tmp_path / "results/sweeps/s/sessions").glob("*.jsonl")
    with journal.open("a") as file:
        file.writelines(json.dumps({**line, "trial": names[5], "attempt": 1}) + "\n" for line in lines)
    assert get("/version") != version
    assert "6 trials: 6 finished" in get("/")
    assert {status for status, _ in answers} == {"200 OK"}
    assert answers[1][1]["Cache-Control"] == "no-store"


def test_the_report_has_all_studies_and_names_their_answers_first(tmp_path):
    config = write_results(tmp_path, GRID, [finished(3.0), finished(2.0)])
    wide = write_scaling_results(tmp_path, {"1x1": [9.0], "1x2": [8.0]}, device="cpu", cost=None, repeats=1)
    write_report(config.model_copy(update={"scaling": wide.scaling}), tmp_path, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    order = [
        "<h1>Trainyard</h1>",
        "best rmse (lowest): 2",
        "There is no recommendation",
        "<h2>Sweep s</h2>",
        "Scaling wide</h2>",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "setInterval" not in text, "only a page from a server follows"


def test_the_report_says_that_nothing_has_run(running, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    config = tmp_path / "my.json"
    config.write_text(json.dumps(as_given(running[0])))
    for results, is_empty in (("results", False), ("other", True)):
        caplog.clear()
        report.main(Namespace(config=config, results=Path(results), watch=False))
        assert ("nothing has run yet: `trainyard run --config " in caplog.text) == is_empty
    assert re.search("Run the same command, .*trainyard run.*, for 6 trials", Path("report.html").read_text())


def test_the_report_says_what_the_one_had_that_it_replaces(running, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    content = as_given(running[0])
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(content))
    second.write_text(json.dumps({**content, "sweeps": {"other": content["sweeps"]["s"]}}))
    for config, replaced in ((first, ""), (first, ""), (second, "Sweep s"), (second, ""), (first, "Sweep other")):
        caplog.clear()
        report.main(Namespace(config=config, results=Path("results"), watch=False))
        said = f"it replaces one that had {replaced}: `trainyard report --config FILE` writes that of another config"
        assert (said in caplog.text) is bool(replaced)
        assert caplog.text.count("it replaces") == bool(replaced)


def test_few_or_failed_trials_have_no_charts(tmp_path):
    config = write_results(tmp_path, GRID, [finished(3.0), FAILED])
    study = current_study(config, "s", tmp_path, tmp_path / "page.html")
    assert not any(isinstance(part, Charts) for part in study.parts.values())
    assert [row[0] for row in study.rows] == ["", "rmse (lowest)", "learning rate", "trial"]
    assert any("RuntimeError" in line for line in study.failures)


def test_a_mean_over_seeds_has_its_deviation_and_says_what_may_be_the_best(tmp_path):
    sweep = {"grid": {"lr": [1, 2], "seed": [0, 1, 2]}, "metric": "rmse", "mode": "min"}
    config = write_results(tmp_path, sweep, [finished(value) for value in (3.0, 3.1, 2.9, 1.0, 1.1, 0.9)])
    study = current_study(config, "s", tmp_path, tmp_path / "page.html")
    assert study.rows[1] == ["mean rmse (lowest)", "1 ± 0.1 (n = 3)", "3 ± 0.1 (n = 3)"]
    assert ["may be the best", "yes", "no"] in study.rows
    table = study.parts["Configurations: means over seeds"].frame
    assert list(table)[:4] == ["place", "rmse mean", "rmse deviation", "n"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("epoch_start_seconds", "epoch start (s)"),
        ("gpu0_peak_mib", "gpu0 peak (MiB)"),
        ("step_ms_p95", "step p95 (ms)"),
        ("is_on_pareto_front", "on pareto front"),
        ("seconds", "seconds"),
        ("val_accuracy", "validation accuracy"),
    ],
)
def test_columns_have_names_for_readers(name, shown):
    assert readable_column(name) == shown


def test_columns_that_would_get_the_same_name_keep_theirs(tmp_path):
    config = write_results(tmp_path, {**GRID, "grid": {"a.lr": [1, 2], "b.lr": [1, 2]}}, [finished(1.0)] * 4)
    frame = current_study(config, "s", tmp_path, tmp_path / "page.html").parts["Trials"].frame
    assert list(frame)[2:4] == ["a.lr", "b.lr"]


def test_a_command_with_markup_is_text(tmp_path):
    config = write_results(tmp_path, GRID, [finished(1.0)] * 4)
    study = current_study(config, "s", tmp_path, tmp_path / "page.html")
    table = ReportTable(pd.DataFrame({"trial": ["</script>"]}))
    other = type(study)("<b>", trials={"a": ("", "echo '</script>\"'")}, parts={"": table})
    write_page([other], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<b></h1>" not in text
    assert "echo '</script>" not in text
