"""Values that are text in the config stay text, also if they look like numbers, in everything that shows them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweep_journals import record_attempt, session_of
from trainyard.config.load import check_config, read_config
from trainyard.config.placeholders import build_argv
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import expand
from trainyard.planning.history import read_state
from trainyard.report.study_pages import write_study_page
from trainyard.report.study_tables import write_tables
from trainyard.results.ranking import rank_sweep
from trainyard.results.sweep_tables import write_sweep_tables
from trainyard.utils.csv_files import read_table, write_table

NUMBERS = st.from_regex(r"[ ]?[+-]?[0-9]{1,6}(\.[0-9]{0,4})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
WORDS = st.sampled_from(
    ["true", "False", "nan", "inf", "None", "null", "0x1f", "1_000", "12", "0012", "1e3", "1.0", "~"]
)
LETTERS = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=8)
TEXTS = st.lists(NUMBERS | WORDS | LETTERS, min_size=1, max_size=5, unique=True)


@given(TEXTS, st.lists(st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.none(), min_size=5, max_size=5))
@settings(max_examples=50, deadline=None)
@example(["1", "2"], [1, 2, 3, None, 5])
def test_a_table_has_the_text_that_was_written(texts, numbers):
    with TemporaryDirectory() as folder:
        path, frame = Path(folder, "t.csv"), pd.DataFrame({"x": texts, "n": numbers[: len(texts)]})
        write_table(frame, path)
        found = read_table(path, text=["x"])
        assert found["x"].tolist() == texts
        assert pd.api.types.is_numeric_dtype(found["n"]) or found["n"].isna().all()


def test_names_are_text_in_every_table(tmp_path):
    names = {"trial": "0012345678", "job": "12", "node": "07", "gpu": "0", "session": "1e3"}
    write_table(pd.DataFrame([names, dict.fromkeys(names)]), tmp_path / "t.csv")
    assert read_table(tmp_path / "t.csv").iloc[0].to_dict() == names


@given(TEXTS)
@settings(max_examples=10, deadline=None)
@example(["0012", "12", "1.50", "1234567", "true"])
def test_the_text_of_a_varied_key_reaches_commands_tables_plots_pages_and_best_yaml(texts):
    content = {"command": "train {args}", "grid": {"x": texts}, "metric": "score", "mode": "max"}
    config = check_config({"sweeps": {"s": content}})
    with TemporaryDirectory() as folder:
        results = Path(folder)
        state = read_state(config.sweeps["s"], "s", results)
        with session_of(results / "sweeps/s") as journal:
            for number, name in enumerate(state.trials):
                record_attempt(journal, name, status=TrialStatus.FINISHED, metrics={"score": number})
        state = read_state(config.sweeps["s"], "s", results)
        write_sweep_tables(state, rank_sweep(state), results / "sweeps/s")
        write_tables(config, "sweeps", "s", results)
        page = write_study_page(config, "sweeps", "s", results).read_text()
        assert all(rf"\"{text}\"" in page for text in texts if text.isalnum() and text.isascii())
        assert state.keys_with_text == {"x"}
        best = read_config(results / "sweeps/s/best.yaml")
        assert [trial.values for trial in expand(best.sweeps["s-best"]).trials] == [{"x": texts[-1]}]


@pytest.mark.parametrize("text", ["0012", "1e3", "true", "1.50"])
def test_arguments_are_the_text_of_the_config(text):
    config = check_config({"sweeps": {"s": {"command": "train {args}", "grid": {"x": [text]}}}})
    (trial,) = expand(config.sweeps["s"]).trials
    argv = build_argv(trial.spec.command, trial.spec.args)
    assert f"--x {text}" in " ".join(argv)
