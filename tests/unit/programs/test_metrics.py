"""Rows of metrics, from the output and from files that a program still writes."""

import functools
import json
import math
import operator
import os
import re
import time
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from trainyard.config.user_programs import Metrics
from trainyard.programs.metric_patterns import KEPT_STEPS
from trainyard.programs.metric_rows import BURST_ROWS, merge_row, numeric_row
from trainyard.programs.metrics import (
    KEPT_LINES,
    MetricsCollector,
    ParsedOutput,
    parse_ended_outputs,
    parse_saved_output,
)
from trainyard.programs.output import LINE_CHARACTERS, LineSplitter

STEPS = r"step (?P<epoch>\d+) loss (?P<loss>{number}) tps (?P<tps>{number})"


def reported(folder, **where):
    return MetricsCollector(Metrics.model_validate(where), folder)


def test_lines_of_the_output_are_rows(tmp_path):
    found = reported(tmp_path, pattern=r"epoch (?P<epoch>\d+): loss (?P<loss>\S+)")
    for line in ("hello", "epoch 1: loss 0.5", "epoch 2: loss nan", "epoch 3: loss bad"):
        found.add_line(line)
    assert found.latest == {}
    assert found.new_rows() == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": None}, {"epoch": 3}]
    assert found.new_rows() == []


def test_a_row_of_several_patterns_is_complete_once_all_have_matched(tmp_path):
    found = reported(tmp_path, pattern=[r"train (?P<train_loss>\S+)", r"val (?P<val_loss>\S+)"])
    for line in ("train 3", "val 4", "train 2", "train 1", "val 1"):
        found.add_line(line)
    assert found.new_rows() == [
        {"epoch": 1, "train_loss": 3, "val_loss": 4},
        {"epoch": 2, "train_loss": 2},
        {"epoch": 3, "train_loss": 1, "val_loss": 1},
    ]
    found.add_line("train 7")
    assert found.new_rows() == []
    assert found.new_rows(final=True) == [{"epoch": 4, "train_loss": 7}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.jsonl", '{"acc": 0.5, "note": "x"}\n{"acc": 0.75, "note": "ä"}\n'),
        ("m.csv", "acc,note\n0.5,x\n0.75,ä\n"),
        ("m.json", '[{"acc": 0.5}, {"acc": 0.75, "note": "ä"}]'),
    ],
)
def test_an_incomplete_row_or_character_is_read_once_it_is_complete(tmp_path, name, text):
    """Wherever the file was cut when it was looked at."""
    for cut in range(len(text.encode())):
        found, path = reported(tmp_path, file=name), tmp_path / name
        path.write_bytes(text.encode()[:cut])
        told = found.new_rows()
        path.write_bytes(text.encode())
        told += found.new_rows()
        assert told == [{"epoch": 1, "acc": 0.5}, {"epoch": 2, "acc": 0.75}]
        assert found.new_rows(final=True) == []
        assert found.error == ""
        path.unlink()


def test_a_json_file_is_one_row_or_a_growing_list(tmp_path):
    found, path = reported(tmp_path, file="m.json"), tmp_path / "m.json"
    path.write_text('{"acc": 1}')
    assert found.new_rows() == [{"epoch": 1, "acc": 1}]
    path.write_text('{"acc":')
    assert found.new_rows() == []
    path.write_text('{"acc": 2}')
    assert found.new_rows() == [{"epoch": 2, "acc": 2}]
    path.write_text('[{"acc": 2}, {"acc": 3}]')
    assert found.new_rows() == [{"epoch": 3, "acc": 3}]


def test_a_list_that_is_written_anew_reports_the_rows_that_changed(tmp_path):
    found, path = reported(tmp_path, file="m.json"), tmp_path / "m.json"
    path.write_text('[{"acc": 1}, {"acc": 2}, {"acc": 3}]')
    assert [row["acc"] for row in found.new_rows()] == [1, 2, 3]
    path.write_text('[{"acc": 1}, {"acc": 4}]')  # resumed after the first one
    assert found.new_rows() == [{"epoch": 2, "acc": 4}]
    path.write_text('[{"acc": 1}, {"acc": 5}]')  # the last epoch runs on
    assert found.new_rows(final=True) == [{"epoch": 2, "acc": 5}]


def test_a_row_with_nan_is_not_taken_for_one_that_changed(tmp_path):
    found, rows = reported(tmp_path, file="m.json"), []
    for epoch in range(1, 4):
        rows.append({"acc": math.nan if epoch == 1 else epoch, "loss": [math.nan, math.inf]})
        (tmp_path / "m.json").write_text(json.dumps(rows))
        assert found.new_rows() == [{"epoch": epoch, "acc": None if epoch == 1 else epoch}]


@pytest.mark.parametrize("anew", ['[{"acc": 1}, {"acc": 4}]', '[{"acc": 1}, {"acc": 2}]'])
def test_rows_that_follow_in_a_list_written_anew_have_their_place_as_epoch(tmp_path, anew):
    """Not the number of all rows that were ever read."""
    found, path = reported(tmp_path, file="m.json"), tmp_path / "m.json"
    path.write_text('[{"acc": 1}, {"acc": 2}, {"acc": 3}]')
    found.new_rows()
    path.write_text(anew)
    found.new_rows()
    path.write_text(anew[:-1] + ', {"acc": 6}]')
    told = found.new_rows()
    path.write_text(anew[:-1] + ', {"acc": 6}, {"acc": 7}]')
    assert told + found.new_rows(final=True) == [{"epoch": 3, "acc": 6}, {"epoch": 4, "acc": 7}]


def test_rows_that_a_resumed_program_repeats_replace_those_in_its_file(tmp_path):
    output, lines = tmp_path / "output-2.log", [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.7), (3, 0.8), (4, 0.9)]
    (tmp_path / "m.csv").write_text("epoch,acc\n" + "".join(f"{epoch},{acc}\n" for epoch, acc in lines))
    output.touch()
    read = functools.partial(parse_saved_output, Metrics(file="m.csv"), tmp_path, output, seconds=1)
    assert [row["epoch"] for row in read().rows] == [1, 2, 3, 2, 3, 4], "an epoch of each fold, for example"
    assert read(resumed=True).rows == [{"epoch": e, "acc": a} for e, a in [lines[0], *lines[3:]]]


def test_an_earlier_output_that_is_missing_is_passed_over(tmp_path):
    """Its program did not start, or the disk was full."""
    (tmp_path / "output-1.log").write_text("acc 0.5\n")
    outputs = [tmp_path / "output-2.log", tmp_path / "output-1.log"]
    metrics = Metrics(pattern="acc (?P<acc>{number})")
    assert [each.metrics for each in parse_ended_outputs(metrics, tmp_path, outputs)] == [{"acc": 0.5}]


def test_rows_of_an_earlier_attempt_count_only_if_it_is_resumed(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"acc": 1}\n')
    assert MetricsCollector(Metrics(file="m.jsonl"), tmp_path, resumes=True).new_rows() == [{"epoch": 1, "acc": 1}]
    assert MetricsCollector(Metrics(file="m.jsonl"), tmp_path).new_rows() == []
    assert (tmp_path / "m.jsonl.before").read_text() == '{"acc": 1}\n', "the old file is kept"


def lightning(folder, version, rows):
    """Write a table as Lightning's CSVLogger does, anew for each row; yields after each."""
    path = folder / f"logs/version_{version}/metrics.csv"
    path.parent.mkdir(parents=True)
    for count in range(1, len(rows) + 1):
        names = list(dict.fromkeys(name for row in rows[:count] for name in row))
        lines = [",".join(str(row.get(name, "")) for name in names) for row in rows[:count]]
        path.write_text("\n".join([",".join(names), *lines]) + "\n")
        yield path


def test_the_newest_match_of_each_attempt_is_read(tmp_path, monkeypatch):
    """Lightning writes a folder for each start: the rows before the checkpoint are in the one before."""
    monkeypatch.setattr("trainyard.programs.metric_files.LOOK_SECONDS", 0.0)
    metrics = Metrics(file="logs/version_*/metrics.csv")
    first = [{"epoch": 0, "loss": 2}, {"epoch": 1, "loss": 1}, {"epoch": 1, "acc": 0.3}, {"epoch": 2, "loss": 0.9}]
    found, rows = MetricsCollector(metrics, tmp_path), []
    for _ in lightning(tmp_path, 0, first):
        rows += found.new_rows()
    assert rows == first[:3], "the new header at epoch 1 loses and repeats none"
    second = [{"epoch": 2, "loss": 0.8}, {"epoch": 3, "loss": 0.7, "acc": 0.6}]
    resumed = MetricsCollector(metrics, tmp_path, resumes=True)
    rows = resumed.new_rows()
    for _ in lightning(tmp_path, 1, second):
        rows += resumed.new_rows()
    rows += resumed.new_rows(final=True)
    joined = []
    for row in rows:
        merge_row(joined, row, resumed=True)
    assert joined == [*first[:1], {"epoch": 1, "loss": 1, "acc": 0.3}, *second]
    assert resumed.latest == {"loss": 0.7, "acc": 0.6}
    assert resumed.missing == ""


def test_a_resumed_program_whose_new_file_is_not_seen_has_reported_nothing(tmp_path):
    """The interrupted attempt's epoch 17 of 99 became the result of a finished trial."""
    metrics = Metrics(file="logs/version_0/metrics.csv")
    list(lightning(tmp_path, 0, [{"epoch": 17, "acc": 0.3}]))
    resumed = MetricsCollector(metrics, tmp_path, resumes=True)
    list(lightning(tmp_path, 1, [{"epoch": 99, "acc": 0.9}]))
    resumed.new_rows(final=True)
    assert not resumed.had_nothing_to_do
    assert "did you mean `file: logs/version_*/metrics.csv`? It left logs/version_1/metrics.csv" in resumed.missing


@pytest.mark.parametrize("where", [{"file": "m.csv"}, {"file": "*.csv"}, {"pattern": "acc=(?P<acc>{number})"}])
def test_a_resumed_program_that_writes_nothing_had_nothing_to_do(tmp_path, where):
    (tmp_path / "m.csv").write_text("epoch,acc\n3,0.5\n")
    (tmp_path / "last.ckpt").write_text("3")
    metrics = Metrics.model_validate(where)
    resumed = MetricsCollector(metrics, tmp_path, checkpoint="*.ckpt", resumes=True)
    (tmp_path / "hparams.yaml").write_text("lr: 0.1")  # as Lightning does at each start
    (tmp_path / "output-2.log").write_text("nothing to do")
    (tmp_path / "output-2.ended").write_text("0")  # the guard's record
    (tmp_path / "setup.log").write_text("unpacked")
    (tmp_path / "teardown.log").write_text("removed")
    resumed.new_rows(final=True)
    assert resumed.missing
    assert resumed.had_nothing_to_do
    (tmp_path / "next.ckpt").write_text("4")
    assert not resumed.had_nothing_to_do, "it has trained, and what it reported was not seen"


@pytest.mark.parametrize(("line", "had_nothing"), [("wrote summary.json", True), ("epoch 9 acc: 0.6", False)])
def test_a_program_that_resumed_after_its_last_epoch_may_write_its_summary(tmp_path, line, had_nothing):
    """It was interrupted before it did, and the metrics that it had printed count; unless it prints them otherwise."""
    pattern = "acc=(?P<acc>{number})"
    resumed = MetricsCollector(Metrics(pattern=pattern), tmp_path, checkpoint="*.ckpt", resumes=True)
    (tmp_path / "summary.json").write_text('{"acc": 0.5}')
    resumed.add_line(line)
    resumed.new_rows(final=True)
    assert resumed.had_nothing_to_do == had_nothing


def test_a_resumed_program_may_append_to_the_file_that_matches(tmp_path):
    (tmp_path / "log-7.csv").write_text("epoch,acc\n1,0.5\n")
    resumed = MetricsCollector(Metrics(file="log-*.csv"), tmp_path, resumes=True, hold_first_row=False)
    assert resumed.new_rows() == [{"epoch": 1, "acc": 0.5}]
    with open(tmp_path / "log-7.csv", "a") as file:
        file.write("2,0.75")
    assert resumed.new_rows() + resumed.new_rows(final=True) == [{"epoch": 2, "acc": 0.75}]
    assert resumed.missing == ""


def test_several_matches_of_one_attempt_are_said_and_the_newest_counts(tmp_path):
    for name, accuracy in (("b.log.json", 0.1), ("a.log.json", 0.2)):
        (tmp_path / name).write_text(f'{{"env": "linux"}}\n{{"epoch": 1, "acc": {accuracy}}}\n')
        os.utime(tmp_path / name, (1000 * accuracy, 10_000 * accuracy))
    (tmp_path / "output-1.log.json").touch()
    found = MetricsCollector(Metrics(file="[ab].log.json"), tmp_path, began=0.0)
    assert found.new_rows(final=True) == [{"epoch": 1, "acc": 0.2}]
    assert found.take_warning() == "[ab].log.json matches b.log.json, a.log.json: the newest counts, a.log.json"


@pytest.mark.parametrize("name", ["m.json", "m.jsonl", "m.log"])
@pytest.mark.parametrize(
    "text",
    ['{"env": "linux"}\n{"epoch": 1, "acc": 0.5}\n{"epoch": 2, "acc": 0.75}\n',
     '[{"epoch": 1, "acc": 0.5}, {"epoch": 2, "acc": 0.75}]',
     '[\n  {"epoch": 1,\n   "acc": 0.5},\n  {"epoch": 2, "acc": 0.75}\n]\n'],
    ids=["lines", "list", "indented"],
)  # fmt: skip
def test_json_is_read_by_its_content_also_while_it_grows(tmp_path, name, text):
    for cut in range(len(text)):
        found, path = reported(tmp_path, file=name), tmp_path / name
        path.write_text(text[:cut])
        told = found.new_rows()
        path.write_text(text)
        told += found.new_rows() + found.new_rows(final=True)
        assert told == [{"epoch": 1, "acc": 0.5}, {"epoch": 2, "acc": 0.75}], f"cut after {text[:cut]}"
        assert found.error == ""
        path.unlink()


def test_an_indented_mapping_is_one_row(tmp_path):
    found = reported(tmp_path, file="m.json")
    (tmp_path / "m.json").write_text(json.dumps({"acc": 0.5, "of_class": {"cat": 1}}, indent=2))
    assert found.new_rows() + found.new_rows(final=True) == [{"epoch": 1, "acc": 0.5, "of_class.cat": 1}]


@pytest.mark.parametrize(
    ("name", "content"),
    [("m.json", '[{"acc": 0.5}, {"acc'), ("m.jsonl", '{"acc": 0.5}\n{"acc": 0.7'), ("m.csv", "epoch,acc\n1,0,5\n")],
)
def test_an_end_that_cannot_be_read_is_no_result(tmp_path, name, content):
    found = reported(tmp_path, file=name)
    (tmp_path / name).write_text(content)
    found.new_rows(final=True)
    assert f"{name} cannot be read as" in found.missing


def test_padded_names_and_cells_of_a_table_are_stripped(tmp_path):
    """As ultralytics writes them."""
    found = reported(tmp_path, file="results.csv")
    (tmp_path / "results.csv").write_text("      epoch,   metrics/mAP50(B)\n          1,            0.25\n")
    assert found.new_rows(final=True) == [{"epoch": 1, "metrics/mAP50(B)": 0.25}]


@pytest.mark.parametrize(
    ("name", "delimiter"), [("training.log", ","), ("m.csv", ";"), ("m.csv", "\t"), ("m.tsv", "\t"), ("log.txt", ";")]
)
def test_a_table_is_known_by_its_header_and_may_have_other_delimiters(tmp_path, name, delimiter):
    """As in Keras's documentation: `CSVLogger("training.log", separator=";")`."""
    found, path = reported(tmp_path, file=name), tmp_path / name
    path.write_text("epoch,val_loss".replace(",", delimiter))
    assert found.new_rows() == []
    path.write_text("epoch,val_loss\n0,1.5\n1,1.2\n".replace(",", delimiter))
    assert found.new_rows(final=True) == [{"epoch": 0, "val_loss": 1.5}, {"epoch": 1, "val_loss": 1.2}]
    assert (found.error, found.missing) == ("", "")


def test_a_tsv_file_is_a_table_whatever_its_header_is(tmp_path):
    found = reported(tmp_path, file="m.tsv")
    (tmp_path / "m.tsv").write_text("\tepoch\tval loss\n0\t1\t0.5\n")
    assert found.new_rows(final=True) == [{"epoch": 1, "val loss": 0.5}]


@pytest.mark.parametrize("again", ["epoch,loss", "epoch,loss,acc", "loss,epoch,new,acc"])
def test_a_header_that_a_resumed_program_writes_again_may_have_other_columns(tmp_path, again):
    found = reported(tmp_path, file="m.csv")
    row = ",".join({"epoch": "2", "loss": "0.4", "acc": "0.9", "new": "7"}[name] for name in again.split(","))
    (tmp_path / "m.csv").write_text(f"epoch,acc,loss\n1,0.5,0.8\n{again}\n{row}\n")
    found.new_rows(final=True)
    assert found.latest == {"loss": 0.4, "acc": 0.9 if "acc" in again else 0.5} | ({"new": 7} if "new" in again else {})


def test_json_may_have_nan_as_other_languages_write_it(tmp_path):
    found = reported(tmp_path, file="m.jsonl")
    (tmp_path / "m.jsonl").write_text('{"epoch": 1, "acc": 0.5, "loss": -nan, "a": [inf, -NaN], "note": "x: nan, y"}\n')
    assert found.new_rows(final=True) == [{"epoch": 1, "acc": 0.5, "loss": None}]


def test_a_table_that_is_written_anew_with_more_columns_repeats_no_row(tmp_path):
    found, path = reported(tmp_path, file="m.csv"), tmp_path / "m.csv"
    path.write_text("loss\n3\n2\n")
    assert [row["loss"] for row in found.new_rows()] == [3, 2]
    path.write_text("loss,acc\n3,\n2,\n1,0.5\n")
    assert found.new_rows(final=True) == [{"epoch": 3, "loss": 1, "acc": 0.5}]


@pytest.mark.parametrize(
    ("content", "message"), [("[1, 2]\n", "a row must be a mapping"), ("{]\n", "cannot be read as jsonl")]
)
def test_an_invalid_row_is_an_error_at_the_end(tmp_path, content, message):
    found = reported(tmp_path, file="m.jsonl")
    (tmp_path / "m.jsonl").write_text(content + '{"acc": 1}\n')
    assert found.new_rows() == [{"epoch": 1, "acc": 1}]
    assert found.new_rows(final=True) == []
    assert message in found.error
    assert message in found.take_warning()
    assert found.take_warning() == ""


def test_only_numbers_are_metrics():
    class Scalar:
        def item(self):
            return 2.5

    assert numeric_row({"a": True, "b": "x", "c": Scalar(), "d": float("inf"), "e": "7", "f": "1e-3"}) == {
        "a": 1, "c": 2.5, "d": None, "e": 7, "f": 0.001,
    }  # fmt: skip


def test_a_number_that_no_float_can_hold_is_infinite():
    """JSON and Python have integers of any size; tables and early stopping have floats and integers of 64 bits."""
    huge = 10**400
    row = numeric_row({"a": huge, "b": -huge, "c": str(huge), "d": Fraction(huge), "e": 10**30, "f": 2**62, "g": 2**64})
    assert row == {"a": None, "b": None, "c": None, "d": None, "e": 1e30, "f": 2**62, "g": 2.0**64}
    assert [type(row[name]) for name in "efg"] == [float, int, float]


def test_an_array_is_no_metric():
    assert numeric_row({"history": np.arange(3), "loss": np.float32(0.5)}) == {"loss": 0.5}


@pytest.mark.parametrize("epoch", ["1" + 400 * "0", "1" + 30 * "0", "1e300"], ids=len)
@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv"])
def test_an_epoch_that_no_program_reaches_is_counted(tmp_path, name, epoch):
    rows = {"metrics.jsonl": f'{{"epoch": {epoch}, "acc": 1}}\n', "metrics.csv": f"epoch,acc\n{epoch},1\n"}
    found = reported(tmp_path, file=name)
    (tmp_path / name).write_text(rows[name])
    assert found.new_rows(final=True) == [{"epoch": 1, "acc": 1}]


def test_epochs_may_be_fractions_and_whole_ones_are_integers(tmp_path):
    """Hugging Face evaluates at 0.5, 1, 1.5: two evaluations do not become one."""
    found = reported(tmp_path, pattern="acc (?P<acc>{number}) epoch (?P<epoch>{number})")
    for epoch in ("0.5", "1.0", "1.5", "2", "nan", "1e300"):
        found.add_line(f"acc 0.5 epoch {epoch}")
    rows = found.new_rows(final=True)
    assert list(dict.fromkeys(repr(row["epoch"]) for row in rows)) == ["0.5", "1", "1.5", "2"], "nan is of the last one"
    assert not found.counts_epochs


def test_a_row_without_an_epoch_is_of_the_epoch_before_it(tmp_path):
    """As the test accuracy at the end: it is no further epoch."""
    found = reported(tmp_path, file="m.jsonl")
    rows = [{"env": "linux", "seed": None}, {"epoch": 1, "loss": 3}, {"epoch": 2, "loss": 2}, {"test_acc": 0.5}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert found.new_rows(final=True) == [
        {"epoch": 1, "loss": 3},
        {"epoch": 2, "loss": 2},
        {"epoch": 2, "test_acc": 0.5},
    ]


def lines_of(*chunks):
    lines = LineSplitter()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.feed(b"", final=True)


def test_output_is_split_into_lines_wherever_its_chunks_end():
    text = "ä\r\n\x1b[1;31mred\x1b[0m\r\x1b]0;title\x07 50%|█████  \x1b[A\nend".encode()
    whole = lines_of(text)
    assert whole == ["ä", "red", " 50%|█████", "end"]
    assert lines_of(*(text[at : at + 1] for at in range(len(text)))) == whole
    assert lines_of(b"a\xff b\n") == ["a\ufffd b"]


def test_only_the_beginning_of_a_long_line_is_kept():
    lines = LineSplitter()
    tracemalloc.start()
    for _ in range(1000):
        assert lines.feed(b"x" * 2**14) == []
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 10 * LINE_CHARACTERS, "of 16 MB"
    (line,) = lines.feed(b"\n")
    assert line == "x" * LINE_CHARACTERS
    assert lines.feed(b"next\n") == ["next"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("-1.2e-05", -1.2e-05), ("+3", 3), (".5", 0.5), ("2.", 2), ("1E6", 1e6), ("93.5%", 0.935), ("50 %", 0.5),
     ("nan", None), ("-Inf", None)],
)  # fmt: skip
def test_number_in_a_pattern_matches_any_number(tmp_path, text, number):
    found = reported(tmp_path, pattern=r"^a=(?P<a>{number}), b=(?P<b>{number}){1}s$")
    found.add_line(f"a={text}, b=1e-3s")
    assert found.new_rows() == [{"epoch": 1, "a": pytest.approx(number) if number else number, "b": 0.001}]


@pytest.mark.parametrize("line", ["a=loss information", "a=nanosecond", "a=infinite", "a=NaNs"])
def test_a_word_is_not_a_number(tmp_path, line):
    found = reported(tmp_path, pattern=r"a=.*?(?P<a>{number})")
    found.add_line(line)
    assert found.new_rows() == []


@pytest.mark.parametrize("line", ["1" * 9000, "1,111" * 1800, "1." * 4500, "1:" * 4500, "1 111 " * 1500, "1-" * 4500])
def test_to_look_for_ranks_and_separators_takes_no_time_in_long_lines(tmp_path, line):
    found = MetricsCollector(Metrics(pattern=STEPS), tmp_path, ranks=2)
    began = time.thread_time()
    for _ in range(10):
        found.add_line(f"{line} step 1 loss 2 tps 3 {line}")
    assert time.thread_time() - began < 3


@pytest.mark.parametrize("line", ["1" * LINE_CHARACTERS, "1." * (LINE_CHARACTERS // 2)])
def test_searching_a_line_of_digits_does_not_take_cubic_time(line):
    (pattern,) = Metrics(pattern="(?P<a>{number})!").compiled
    assert pattern.search(line) is None


def test_to_say_where_a_pattern_ends_to_match_takes_no_minutes_for_long_lines(tmp_path):
    """It took two minutes, in which the slot of a program that had ended was idle."""
    found = reported(tmp_path, pattern=r"epoch (?P<epoch>\d+) .* loss=(?P<loss>{number}) .* acc (?P<acc>{number})")
    began = time.thread_time()
    for _ in range(KEPT_LINES // 10):
        found.add_line("epoch 1 " * 2000)
    assert found.new_rows(final=True) == []
    searched = time.thread_time()
    assert r"it matches up to epoch (?P<epoch>\d+) .* , but not the rest" in found.missing
    assert time.thread_time() - searched < searched - began, "less than the search itself"


def test_other_braces_in_a_pattern_keep_their_meaning(tmp_path):
    found = reported(tmp_path, pattern=r"\{number\} x{2} (?P<a>\d{1,3})")
    found.add_line("{number} xx 12")
    assert found.new_rows() == [{"epoch": 1, "a": 12}]


@pytest.mark.parametrize(
    ("text", "number"),
    [("7,282", 7282), ("1,234,567.8", 1234567.8), ("-14,478", -14478), ("1'234.5", 1234.5), ("1\u202f234.5", 1234.5),
     ("1_000", 1000), ("\u22121.5e\u221205", -1.5e-5), ("+1.2e+04", 12000.0), ("-NaN", None), ("-inf", None),
     ("1,200%", 12.0)],
)  # fmt: skip
@pytest.mark.parametrize("where", ["output", "csv", "jsonl"])
def test_numbers_are_read_as_programs_print_them(tmp_path, text, number, where):
    """Groups of three digits are one number, and a minus may be the typographic one."""
    if where == "output":
        found = reported(tmp_path, pattern=r"n=(?P<n>{number})")
        found.add_line(f"n={text} and more")
    else:
        found = reported(tmp_path, file=f"m.{where}")
        content = f'n,m\n"{text}",x\n' if where == "csv" else json.dumps({"n": text}) + "\n"
        (tmp_path / f"m.{where}").write_text(content)
    assert found.new_rows(final=True) == [{"epoch": 1, "n": number}]
    assert found.missing == ""


@pytest.mark.parametrize(
    ("pattern", "line", "error"),
    [("n=(?P<n>{number})", "n=3,2451", "matches only '3' of '3,2451' for n: have the program print"),
     ("n=(?P<n>{number})", "n=0,512 m", "matches only '0' of '0,512' for n"),
     ("n=(?P<n>{number})", "n=1.234,56", "matches only '1.234' of '1.234,56' for n"),
     ("n=(?P<n>{number})", "n=1 234.5", "matches only '1' of '1 234.5' for n: if these are two numbers"),
     ("n=(?P<n>{number})", "n=1 234", "matches only '1' of '1 234' for n: if these are two numbers"),
     ("n=(?P<n>{number})", "n=1.28x10^-3", "matches only '1.28' of '1.28x10^-3' for n: have the program print it"),
     ("n=(?P<n>{number})", "n=1.28D-03", "matches only '1.28' of '1.28D-03' for n: have the program print it"),
     ("n=(?P<n>{number})", "n=1:32", "matches only '1' of '1:32' for n: have the program print one number"),
     (r"n=(?P<n>[\d.]+).* m", "n=3,2451 m", "matches only '3' of '3,2451' for n"),
     (r"n=(?P<n>[\d.]+)", "n=1e-05", "matches only '1' of '1e-05' for n: write (?P<n>{number})"),
     (r"n=(?P<n>\S+)", "n=3,2451", "finds 3,2451 for n: have the program print a decimal point"),
     ("(?P<n>{number}) img/s", "speed 3,2451 img/s", "matches only '2451' of '3,2451' for n"),
     ("(?P<n>{number}) img/s", "speed 1 234.5 img/s", "matches only '234.5' of '1 234.5' for n"),
     ("^(?P<m>{number}),(?P<n>{number})", "10,200,300", "matches only '200' of '10,200,300' for n")],
)  # fmt: skip
def test_a_number_with_a_decimal_comma_or_a_space_is_never_read_as_another(tmp_path, pattern, line, error):
    found = reported(tmp_path, pattern=[pattern, "acc (?P<acc>{number})"])
    found.add_line("acc 0.5")
    found.add_line(line)
    assert all("n" not in row for row in found.new_rows(final=True))
    assert error in found.unread["n"]
    assert error in found.take_warning()
    assert (found.missing, found.latest["acc"]) == ("", 0.5), "the other metric is read"


def test_what_a_comma_may_also_mean_is_said(tmp_path):
    found = reported(tmp_path, file="m.jsonl")
    (tmp_path / "m.jsonl").write_text('{"tps": "7,282", "gpus": "0,1"}\n')
    assert found.new_rows(final=True) == [{"epoch": 1, "tps": 7282}]
    assert found.take_warning() == "tps: the comma in 7,282 is taken to separate thousands"


@pytest.mark.parametrize(
    ("pattern", "line", "part", "remedy"),
    [(r"loss (?P<loss>[\d.]+)", "loss 1.2e-05", "matches only '1.2' of '1.2e-05' for loss", "(?P<loss>{number})"),
     (r"loss (?P<loss>[\d.]+).* acc (?P<acc>\S+)", "loss 1.2e-05 acc 1", "of '1.2e-05' for loss", "(?P<loss>{number})"),
     (r"loss.*?(?P<loss>[\d.]+)", "loss: -0.5", "matches only '0.5' of '-0.5'", "(?P<loss>{number})"),
     (r"loss (?P<loss>[\d.e]+)", "loss 1.2e-05", "matches only '1.2e' of '1.2e-05'", "(?P<loss>{number})"),
     ("loss (?P<loss>{number}).*(?P<n>{number}) img/s", "loss 0.5 at 1478.5 img/s", "only '5' of '1478.5' for n", ""),
     (r"speed .+?(?P<n>\d+)", "speed 478", "matches only '78' of '478' for n", "")],
)  # fmt: skip
def test_a_pattern_that_matches_a_part_of_a_number_is_warned_about_once(tmp_path, pattern, line, part, remedy):
    found = reported(tmp_path, pattern=pattern)
    for _ in range(2):
        found.add_line(line)
    warning = found.take_warning()
    assert part in warning
    assert remedy in warning
    assert found.take_warning() == ""


@pytest.mark.parametrize(
    ("printed", "warning"),
    [(["950K"], "n has the unit K in '950K', which is not read"), (["1.4M/s"], "n has the unit M in '1.4M'"),
     (["7 K"], "n has the unit K in '7 K', which is not read"), (["950ms", "1.2s"], "n has the unit ms and then s"),
     (["1.2s", "1.2"], "n has the unit s and then none"), (["50%", "0.6"], "n has the unit % and then none"),
     (["0.6", "50%"], "n has the unit none and then %"), (["12.3GB", "nan"], ""),
     (["950 MB", "1.2 GB"], "n has the unit MB and then GB"), (["12.3ms", "5.1ms"], ""), (["5.1s", "7.2s"], ""),
     (["80 it/s", "90 it/s"], ""), (["950 MB", "960 MB"], ""), (["5 Mean", "6 steps"], ""), (["0.5, m", "1, s"], "")],
)  # fmt: skip
def test_units_that_make_numbers_incomparable_are_said(tmp_path, printed, warning):
    found = reported(tmp_path, pattern="n=(?P<n>{number})")
    for number in printed:
        found.add_line(f"n={number}")
    found.new_rows(final=True)
    said = found.take_warning()
    assert said.startswith(warning)
    assert bool(said) == bool(warning)
    assert ("n" in found.latest) == (not warning), "a value with another unit is not the result, and none before it"


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl"])
def test_a_percent_sign_in_some_rows_of_a_file_is_said(tmp_path, name):
    found = reported(tmp_path, file=name)
    rows = [("1", "93%", "0.5"), ("2", "0.95", "0.4")]
    lines = ['{{"epoch": {}, "acc": "{}", "loss": {}}}'.format(*row) for row in rows]
    lines = ["epoch,acc,loss", *map(",".join, rows)] if name == "m.csv" else lines
    (tmp_path / name).write_text("\n".join(lines))
    found.new_rows(final=True)
    assert found.latest == {"loss": 0.4}
    assert "acc has the unit % and then none" in found.unread["acc"]


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl"])
def test_rows_of_training_and_validation_that_only_a_text_tells_apart_are_not_read(tmp_path, name):
    rows = [(epoch, phase, 1 / epoch) for epoch in (1, 2) for phase in ("train", "val")]
    lines = ["epoch,phase,loss", *(f"{epoch},{phase},{loss}" for epoch, phase, loss in rows)]
    if name == "m.jsonl":
        lines = [json.dumps({"epoch": epoch, "phase": phase, "loss": loss, "lr": 0.1}) for epoch, phase, loss in rows]
    found = reported(tmp_path, file=name)
    (tmp_path / name).write_text("\n".join(lines))
    found.new_rows(final=True)
    assert "loss is of train and of val" in found.unread["loss"]


@pytest.mark.parametrize("name", ["m.json", "m.jsonl"])
def test_metrics_within_objects_have_dotted_names(tmp_path, name):
    found = reported(tmp_path, file=name)
    row = '{"epoch": 2, "train": {"loss": 0.3, "top": {"1": 0.7, "all": [1, 2]}, "note": "x"}, "eval/acc": 0.5}\n'
    (tmp_path / name).write_text(row)
    assert found.new_rows(final=True) == [{"epoch": 2, "train.loss": 0.3, "train.top.1": 0.7, "eval/acc": 0.5}]


def test_rows_of_training_and_validation_with_other_metrics_are_joined(tmp_path):
    found = reported(tmp_path, file="m.jsonl")
    (tmp_path / "m.jsonl").write_text(
        '{"mode": "train", "epoch": 1, "lr": 0.1, "loss": 0.5}\n{"mode": "val", "epoch": 1, "lr": 0.1, "map": 0.3}\n'
    )
    found.new_rows(final=True)
    assert (found.latest, found.unread) == ({"lr": 0.1, "loss": 0.5, "map": 0.3}, {})


@pytest.mark.parametrize(
    ("pattern", "lines", "problem"),
    [("Acc: (?P<n>{number})", ["val Loss: 0.7 Acc: 0.90", "train Loss: 0.5 Acc: 0.95"], "n is of val and of train"),
     ("loss=(?P<n>{number})", ["Training: 9%, loss=0.6", "Validation: 9%, loss=0.5"], "n is of train and of val"),
     ("loss (?P<n>{number})", ["epoch 1 loss 0.6", "test loss 0.5"], "n is of unnamed data and of test"),
     ("val acc (?P<n>{number})", ["epoch 9 val acc 0.8", "best val acc 0.9"], "n is of val and of best val"),
     ("Acc@1 (?P<n>{number})", ["Test: Acc@1 45.0 Acc@5 80.0", "Test: EMA Acc@1 47.0"], "n is of test and of test ema"),
     ("val_acc (?P<n>{number})", ["val_acc 0.7", "ema val_acc 0.9"], "n is of val and of val ema"),
     ("acc (?P<n>{number})", ["student val acc 0.7", "teacher val acc 0.9"], "n is of val student and of val teacher"),
     ("loss: (?P<n>{number})", ["step: 9 loss: 7.1", "validate step: 9 loss: 7.4"], "n is of unnamed data and of val"),
     ("loss (?P<n>{number})", ["Training loss 0.6", "Evaluating: loss 0.5"], "n is of train and of eval"),
     ("Loss (?P<n>{number})", ["TrainLoss 0.6", "ValidLoss 0.5"], "n is of train and of val"),
     ("f1 (?P<n>{number})", ["epoch 1 f1 0.5", "best: epoch 1 f1 0.5"], "n is of unnamed data and of best"),
     ("f1 (?P<n>{number})", ["epoch 3 f1 0.5", "Restored epoch=2 f1 0.6"], "n is of unnamed data and of restored"),
     ("f1 (?P<n>{number})", ["epoch 1 f1 0.5 (best 0.5)", "epoch 2 f1 0.4 (best 0.5)"], ""),
     ("f1 (?P<n>{number})", ["test f1 0.5", "best test f1 0.6"], "n is of test and of best test"),
     ("f1 (?P<best>{number})", ["f1 0.5", "best f1 0.6"], "best is of unnamed data and of best"),
     ("f1 (?P<n>{number}) of test", ["f1 0.5 of test", "test f1 0.6 of test"], "n is of unnamed data and of test"),
     ("(?P<kind>Final|Best) test (?P<n>{number})", ["Final test 1", "Best test 2"], "n is of test and of best test"),
     ("(?:train|val) loss (?P<n>{number})", ["train loss 0.8", "val loss 0.9"], "n is of train and of val"),
     ("(?P<split>val|test) f1 (?P<n>{number})", ["val f1 0.8", "val f1 0.9"], ""),
     ("(?P<of>val|test) (?P<x>best|last) f1 (?P<n>{number})", ["val best f1 0.8", "val best f1 0.9"], ""),
     ("(?P<split>val|validation) f1 (?P<n>{number})", ["val f1 0.8", "validation f1 0.9"], ""),
     (r"(?:\* best \* )?f1 (?P<n>{number})", ["test f1 0.5", "test * best * f1 0.6"], ""),
     ("val loss (?P<n>{number})", ["train loss 0.5 val loss 0.6", "val loss 0.6", "(best 0.6) val loss 0.5"], ""),
     ("(?P<n>{number}) acc", ["0.5 acc (best 0.5)", "0.6 acc of the test data"], "")],
)  # fmt: skip
def test_a_pattern_that_finds_numbers_of_several_kinds_is_refused(tmp_path, pattern, lines, problem):
    """As in the output of PyTorch's tutorial on transfer learning: the last one would count, also of training data."""
    found = reported(tmp_path, pattern=pattern)
    for line in lines:
        found.add_line(line)
    found.new_rows(final=True)
    assert next(iter(found.unread.values()), "").startswith(problem)
    assert (bool(found.latest), bool(found.unread)) == (not problem, bool(problem))


@pytest.mark.parametrize(
    ("pattern", "last", "missed"),
    [(r"reward=(?P<n>[\d.]+)", "reward=-3.5", "-3.5"), (r"loss (?P<n>\d+\.\d+)", "loss nan", "nan"),
     (r"loss (?P<n>[0-9.]+), acc", "loss -inf, acc 1", "-inf"), (r"(?P<step>\d+) a (?P<n>\d+)", "7 a -2e-5", "-2e-5"),
     (r"loss (?P<n>-?\d+\.\d+)", "loss best", ""), (r"epoch (?P<epoch>\d+) (?P<n>[\d.-]+)", "epoch -1 2", ""),
     (r"loss (?P<n>{number})", "loss - 3", "")],
)  # fmt: skip
def test_a_pattern_that_matches_no_negative_numbers_or_nan_is_refused_where_it_meets_one(
    tmp_path, pattern, last, missed
):
    """The value before would count."""
    found = reported(tmp_path, pattern=pattern)
    for line in ("reward=2.5", "loss 2.5, acc 1", "6 a 2", "epoch 1 2.5", last):
        found.add_line(line)
    found.new_rows(final=True)
    expected = {"n": f"the pattern {pattern} does not match {missed} for n: write (?P<n>{{number}})"} if missed else {}
    assert found.unread == expected
    assert ("n" in found.latest) == (not missed)


def test_values_of_several_metrics_in_one_column_are_not_read(tmp_path):
    found = reported(tmp_path, file="m.csv")
    (tmp_path / "m.csv").write_text("step,name,value\n1,acc,0.5\n1,lr,0.001\n")
    found.new_rows(final=True)
    assert "value is of acc and of lr: only a text in its rows tells which" in found.unread["value"]


@pytest.mark.parametrize("word", ["mean", "std", "best"])
def test_a_row_of_a_summary_is_not_taken_for_the_last_one(tmp_path, word):
    found = reported(tmp_path, file="m.csv")
    (tmp_path / "m.csv").write_text(f"fold,acc\n0,0.5\n1,0.7\n{word},0.1\n")
    found.new_rows(final=True)
    assert f"acc is of unnamed data and of {word}: only a text in its rows tells" in found.unread["acc"]


@pytest.mark.parametrize(
    ("rows", "is_said"),
    [("1,cat,0.5\n1,dog,0.2\n", True), ("1,cat,0.5\n2,dog,0.2\n", False), ("1,N/A,nan\n1,N/A,0.2\n", False),
     ("1,at 5:10,0.5\n1,at 5:11,0.2\n", False)],
)  # fmt: skip
def test_rows_of_one_epoch_that_a_text_tells_apart_are_said(tmp_path, rows, is_said):
    found = reported(tmp_path, file="m.csv")
    (tmp_path / "m.csv").write_text(f"epoch,class,ap\n{rows}")
    found.new_rows(final=True)
    assert found.latest == {"ap": 0.2}
    expected = "ap: rows of one epoch differ in class, 'cat' and 'dog': the last counts"
    assert found.take_warning() == expected * is_said


def test_of_two_columns_of_one_name_none_is_a_metric(tmp_path):
    found = reported(tmp_path, file="m.csv")
    (tmp_path / "m.csv").write_text("epoch,acc,loss,acc\n1,0.5,0.3,0.7\n")
    assert found.new_rows(final=True) == [{"epoch": 1, "loss": 0.3}]
    assert found.unread == {"acc": "m.csv has several columns named acc"}
    assert found.take_warning() == found.unread["acc"]


def test_the_index_of_a_data_frame_is_no_metric(tmp_path):
    found = reported(tmp_path, file="m.csv")
    (tmp_path / "m.csv").write_text(",epoch,acc\n0,1,0.5\n1,2,0.6\n")
    assert found.new_rows(final=True) == [{"epoch": 1, "acc": 0.5}, {"epoch": 2, "acc": 0.6}]


def test_a_last_row_without_all_its_cells_is_no_row(tmp_path):
    """It is half written, as by a process that still runs."""
    found = reported(tmp_path, file="m.csv")
    (tmp_path / "m.csv").write_text("epoch,loss,acc\n1,0.3,0.5\n2,0.")
    assert found.new_rows(final=True) == [{"epoch": 1, "loss": 0.3, "acc": 0.5}]
    assert "a row has 2 cells, but the header 3" in found.missing


def test_a_unit_that_the_pattern_names_needs_no_words(tmp_path):
    found = reported(tmp_path, pattern="n=(?P<n>{number})K")
    found.add_line("n=950K")
    assert found.take_warning() == ""


@pytest.mark.parametrize(
    ("pattern", "line"),
    [(r"n=(?P<n>{number})", "n=0.5,123"), ("step (?P<step>{number})", "step 5:10"), (r"(?P<m>\d+):(?P<s>\d+)", "1:32"),
     (r"n=(?P<n>{number})", "n=12, 345"), (r"n=(?P<n>{number}),", "n=12,3456"),
     (r"n=(?P<n>{number}) ", "n=12 345"), (r"\d+ (?P<n>{number}) img", "3 512 img"),
     ("epoch (?P<epoch>{number})", "epoch 3 512"),
     (r"(?P<a>{number}),(?P<b>{number})", "10,200"), (r"^(?P<a>{number}),(?P<b>{number})$", "1,200"),
     (r"at (?P<n>{number})", "at 12 345/500"),
     (r"n=(?P<n>\d+)_(?P<m>\d+)", "n=1_000"),
     (r"epoch (?P<epoch>\d+)\.(?P<step>\d+) (?P<loss>{number})", "epoch 3.5 1.2e-05"),
     (r"epoch (?P<epoch>\d+)", "epoch 3. loss 1"), (r"epoch (?P<epoch>\d+)/", "epoch 3/10"),
     (r"acc (?P<acc>[\d.]+)%", "acc 93.5%"), (r"acc - (?P<acc>[\d.]+)", "acc - 0.5"),
     ("(?P<acc>{number}) acc", "0.5,0.25 acc"), (r"v1\.(?P<minor>\d+)", "v1.25"),
     (r"(?P<epoch>\d\d)(?P<step>\d\d)", "0312"), (r"\d+\.(?P<step>\d+)", "3.25")],
)  # fmt: skip
def test_a_pattern_that_matches_whole_numbers_is_not_warned_about(tmp_path, pattern, line):
    found = reported(tmp_path, pattern=pattern)
    found.add_line(line)
    assert found.new_rows(final=True)
    assert found.take_warning() == ""


@pytest.mark.parametrize(
    ("pattern", "form"),
    [("'eval_acc': (?P<acc>{number}), 'epoch': (?P<epoch>{number})", "{{'eval_acc': {acc}, 'epoch': {epoch}}}"),
     ("'acc': '(?P<acc>{number})', 'epoch': '(?P<epoch>{number})", "{{'acc': '{acc}', 'epoch': '{epoch}'}}"),
     ("acc (?P<acc>{number})", "epoch: {epoch} acc {acc}"), ("acc (?P<acc>{number})", "epoch {epoch:.0f}. acc {acc}"),
     ("acc (?P<acc>{number})", "step [{epoch:.0f}. of 9] acc {acc}")],
)  # fmt: skip
@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_of_different_epochs_are_not_those_of_several_ranks(tmp_path, pattern, form, ranks):
    found = MetricsCollector(Metrics(pattern=pattern), tmp_path, ranks=ranks)
    epochs = (1.0, 2.0, 3.0) if ".0f" in form else (0.5, 1.0, 1.5)
    for number, epoch in enumerate(epochs):
        found.add_line(form.format(epoch=epoch, acc=0.25 + number / 10))
    assert [row["acc"] for row in found.new_rows(final=True)] == [0.25, 0.35, 0.45]
    assert found.take_warning() == ""


def test_several_lines_of_one_process_for_a_step_are_not_said_to_be_of_ranks(tmp_path):
    """Several environments of an RL program end episodes in one step."""
    found = MetricsCollector(Metrics(pattern="return=(?P<score>{number})"), tmp_path)
    for score in (21.0, 9.0):
        found.add_line(f"global_step=512, return={score}")
    assert [row["score"] for row in found.new_rows(final=True)] == [21.0, 9.0]
    assert found.take_warning() == (
        "lines that differ only in their values, as 'global_step=512, return=#': the last counts; if they are "
        "those of several ranks, let rank 0 alone print them"
    )


def test_lines_of_several_trainings_are_said(tmp_path):
    """As of the folds of a cross-validation, which are no epochs."""
    found = MetricsCollector(Metrics(pattern="acc (?P<acc>{number})"), tmp_path)
    for fold, acc in ((1, 0.5), (1, 0.6), (2, 0.4)):
        found.add_line(f"Fold {fold}: acc {acc}")
        assert bool(found.take_warning()) == (fold == 2)
    assert [row["acc"] for row in found.new_rows(final=True)] == [0.5, 0.6, 0.4]


@pytest.mark.parametrize(
    ("patterns", "line", "is_said"),
    [
        (["rmse:(?P<rmse>{number})"], "[0] train-rmse:0.5 eval-rmse:0.6", True),
        (["eval-rmse:(?P<rmse>{number})"], "[0] train-rmse:0.5 eval-rmse:0.6", False),
        (["loss: (?P<loss>{number})", "val_loss: (?P<val_loss>{number})"], "loss: 0.5 - val_loss: 0.6", False),
        (["loss: (?P<loss>{number})"], "loss: 0.5 - val_loss: 0.6", True),
        (["loss (?P<loss>{number})"], "val loss 0.5, mask loss 0.6", False),
    ],
)
def test_a_line_that_has_a_metric_of_training_and_of_other_data_is_said(tmp_path, patterns, line, is_said):
    found = MetricsCollector(Metrics(pattern=patterns), tmp_path)
    found.add_line(line)
    assert ("the first counts" in found.take_warning()) == is_said


@pytest.mark.parametrize("part", ['{"ep', '{"epoch": 2, "val": {"a', '{"epoch": 2, "acc": 0.'])
def test_a_row_after_a_part_that_a_killed_program_has_left_counts(tmp_path, part):
    rows = [f'{{"epoch": {epoch}, "acc": {epoch / 4}, "more": {{"x": 1}}}}' for epoch in (1, 2, 3)]
    (tmp_path / "log.jsonl").write_text(f"{rows[0]}\n{part}{rows[1]}\n{rows[2]}\n")
    found = MetricsCollector(Metrics(file="log.jsonl"), tmp_path, began=0.0)
    assert [(row["epoch"], row["acc"]) for row in found.new_rows(final=True)] == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_a_mapping_at_the_end_of_a_part_is_no_row(tmp_path):
    """As of a program that begins each line with its newline."""
    (tmp_path / "log.jsonl").write_text('{"epoch": 1, "acc": 0.5}\n{"epoch": 2, "best": {"acc": 0.9}\n{"epoch": 3}\n')
    found = MetricsCollector(Metrics(file="log.jsonl"), tmp_path, began=0.0)
    found.new_rows(final=True)
    assert found.latest == {"acc": 0.5}


def test_the_epoch_may_be_written_with_a_capital(tmp_path):
    """As in the header of a CSV file that a program goes on writing when it resumes."""
    (tmp_path / "log.csv").write_text("Epoch,Val Acc\n4,0.5\n")
    found = MetricsCollector(Metrics(file="log.csv"), tmp_path, began=0.0, hold_first_row=False)
    assert found.new_rows() == [{"epoch": 4, "Val Acc": 0.5}]
    (tmp_path / "log.csv").write_text("Epoch,Val Acc,lr\n4,0.5,1\n6,0.75,1\n")  # written anew, for a new column
    assert [row["epoch"] for row in found.new_rows(final=True)] == [4, 6]
    assert not Metrics(pattern=r"(?P<Epoch>\d+) (?P<loss>{number})").numbers_rows, "they are those of the program"


def test_lines_of_the_same_fraction_of_an_epoch_may_be_those_of_several_ranks(tmp_path):
    found = MetricsCollector(Metrics(pattern="acc (?P<acc>{number})"), tmp_path, ranks=2)
    for epoch, acc in ((0.5, 0.2), (0.5, 0.4), (1.0, 0.4), (1.0, 0.6)):
        found.add_line(f"epoch: {epoch} time/epoch: {acc}s acc {acc}")
    assert [row["acc"] for row in found.new_rows(final=True)] == pytest.approx([0.3, 0.5])
    assert "if they are those of several ranks" in found.take_warning()


def printed_by(ranks, form, steps=3):
    """The lines of several ranks, whose loss is a tenth of the rank above the number of the step."""
    return [form.format(rank=rank, step=step, loss=step + rank / 10) for step in range(1, steps + 1) for rank in ranks]


@pytest.mark.parametrize("ranks", [(0, 1, 2), (2, 0, 1), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("label", ["[rank{rank}]:[titan] ", "[1,{rank}]<stdout>: ", "[rank: {rank}] "])
def test_of_lines_that_name_their_ranks_those_of_rank_0_count(tmp_path, label, ranks):
    found, rows = MetricsCollector(Metrics(pattern=STEPS), tmp_path), []
    for line in printed_by(ranks, label + "step {step} loss {loss} tps 1,00{rank}"):
        found.add_line(line)
        rows += found.new_rows()
    rows += found.new_rows(final=True)
    assert rows == [{"epoch": step, "loss": step, "tps": 1000} for step in (1, 2, 3)]
    assert found.parsed().of_several_ranks == {"epoch", "loss", "tps"}


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("form", ["[GPU{rank}] *", "12:00:01 [GPU{rank}] *", "cuda:{rank} - *", "local_rank={rank} *",
                                  "(Process {rank}) *", "* (rank {rank})", "* [GPU {rank}]"])  # fmt: skip
def test_other_labels_name_ranks_too_and_different_values_are_said(tmp_path, form, ranks):
    found = MetricsCollector(Metrics(pattern=STEPS), tmp_path, ranks=2)
    for line in printed_by(ranks, form.replace("*", "step {step} loss {loss} tps 5")):
        found.add_line(line)
    assert [row["loss"] for row in found.new_rows(final=True)] == [1, 2, 3]
    assert "with different values: those of the lowest count" in found.take_warning()
    assert found.take_warning() == ""


@pytest.mark.parametrize("pattern", [STEPS, r"step (?P<epoch>\d+).*loss (?P<loss>{number})"])
@pytest.mark.parametrize("form", ["[rank{rank}]: *", "12:00:01 [GPU{rank}] *", "* (rank {rank})", "*"])
@pytest.mark.parametrize("ranks", [(0, 1), (1, 0), (2, 0, 1)], ids=str)
def test_lines_of_ranks_whose_ends_are_written_after_the_next_line_are_all_read(tmp_path, pattern, form, ranks):
    found = MetricsCollector(Metrics(pattern=pattern), tmp_path, ranks=len(ranks))
    lines = printed_by(ranks, form.replace("*", "step {step} loss {loss} tps 5 img/s"))
    for step in range(3):
        found.add_line("".join(lines[step * len(ranks) : (step + 1) * len(ranks)]))
        found.add_line("")
    mean = 0 if "{rank}" in form else sum(ranks) / len(ranks) / 10
    assert [row["loss"] for row in found.new_rows(final=True)] == [pytest.approx(step + mean) for step in (1, 2, 3)]


@pytest.mark.parametrize(
    "line",
    [
        "loss 1.5, val loss 2.5",
        "loss 1.5 val_loss 2.5",
        "loss 1.5 valloss 2.5",
        "loss 1.5 (best loss 0.5)loss 2.5",
        "loss 1.5loss/val 2.5",
        "loss 1.5",
    ],
)
def test_another_metric_of_a_line_does_not_begin_a_line(tmp_path, line):
    found = MetricsCollector(Metrics(pattern="loss (?P<loss>{number})"), tmp_path, ranks=2)
    found.add_line(line)
    assert [row["loss"] for row in found.new_rows(final=True)] == [1.5]


def test_labels_between_epoch_and_metric_are_those_of_several_ranks(tmp_path):
    found = MetricsCollector(Metrics(pattern=r"Epoch (?P<epoch>\d+).*loss (?P<loss>{number})"), tmp_path, ranks=2)
    for line in printed_by((0, 1), "Epoch {step}, rank {rank}, loss {loss}"):
        found.add_line(line)
    assert [row["loss"] for row in found.new_rows(final=True)] == pytest.approx([1.05, 2.05, 3.05])
    assert ": their mean counts; if they are those of several ranks" in found.take_warning()


@pytest.mark.parametrize(
    "form", ["GPU 1.{n} GB *", "GPU {n}% *", "gpu {n}0 GB *", "Process {n}/90 *", "lora_rank={n} *"]
)
def test_other_numbers_are_no_labels_of_ranks(tmp_path, form):
    found = MetricsCollector(Metrics(pattern="loss (?P<loss>{number})"), tmp_path, ranks=2)
    for number in (3, 1, 2):
        found.add_line(form.replace("*", "loss 0.{n}").format(n=number))
    assert [row["loss"] for row in found.new_rows(final=True)] == [0.3, 0.1, 0.2]
    assert found.take_warning() == ""


@pytest.mark.parametrize("label", ["{rank}: ", "[{rank}] "])
@pytest.mark.parametrize(("ranks", "loss", "counts"), [(1, 0.3, "the last counts"), (4, 0.15, "their mean counts")])
def test_lines_that_begin_with_numbers_may_be_those_of_several_ranks(tmp_path, label, ranks, loss, counts):
    """As `srun --label` and `mpiexec -prepend-rank` print them."""
    found = MetricsCollector(Metrics(pattern=STEPS), tmp_path, ranks=ranks)
    for line in printed_by(range(4), label + "step {step} loss {loss} tps 1,00{rank}"):
        found.add_line(line)
    rows = {row["epoch"]: row["loss"] for row in found.new_rows(final=True)}
    assert rows == {step: pytest.approx(step + loss) for step in (1, 2, 3)}
    assert counts in found.take_warning() + found.take_warning()


def test_rising_numbers_at_the_beginning_of_lines_do_not_hold_rows_back_for_long(tmp_path):
    found, rows = MetricsCollector(Metrics(pattern="loss (?P<loss>{number})"), tmp_path), []
    for epoch in [*range(1, 21), *range(1, 21)]:  # of two folds
        found.add_line(f"{epoch}: loss 0.{epoch:02}")
        rows += found.new_rows()
    assert len(rows) > 38
    rows += found.new_rows(final=True)
    assert len(rows) == 40
    assert found.take_warning() == ""


def test_lines_without_a_step_are_not_taken_for_those_of_several_ranks_however_many_there_are(tmp_path):
    found = MetricsCollector(Metrics(pattern="loss (?P<loss>{number})"), tmp_path, ranks=2)
    for number in range(KEPT_STEPS + 10):
        found.add_line(f"loss 0.{number:05}")
        found.new_rows()
    assert found.take_warning() == ""
    assert found.parsed().of_several_ranks == set()


def test_of_two_columns_the_first_is_no_number_with_a_comma(tmp_path):
    found = reported(tmp_path, pattern="^(?P<epoch>{number}),(?P<acc>{number})")
    found.add_line("1,85,0.32")
    assert found.new_rows(final=True) == [{"epoch": 1, "acc": 85}]
    assert found.missing == ""


def test_where_rank_0_prints_no_metrics_those_of_the_lowest_that_does_count(tmp_path):
    """As the last stage of a pipeline does."""
    found = reported(tmp_path, pattern=STEPS)
    for line in ["[rank0]: starts", *printed_by([7, 6], "[rank{rank}]: step {step} loss {loss} tps 9", steps=6)]:
        found.add_line(line)
    assert [row["loss"] for row in found.new_rows(final=True)] == [step + 0.6 for step in range(1, 7)]


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_number_at_the_beginning_of_lines_is_no_rank_unless_it_goes_back(tmp_path, ranks):
    found = MetricsCollector(Metrics(pattern="loss (?P<loss>{number})"), tmp_path, ranks=ranks)
    for epoch in range(4):
        found.add_line(f"{epoch}: loss {9 - epoch}")
    assert [row["loss"] for row in found.new_rows(final=True)] == [9, 8, 7, 6]


def test_a_metric_that_is_named_rank_is_no_rank(tmp_path):
    """As in retrieval: the fraction of queries whose first, or first five, answers are right."""
    found = reported(tmp_path, pattern=["rank1: (?P<rank1>{number})", "rank5: (?P<rank5>{number})"])
    for line in ("rank1: 0.5", "rank5: 0.7", "rank1: 0.6", "rank5: 0.8"):
        found.add_line(line)
    assert [(row["rank1"], row["rank5"]) for row in found.new_rows(final=True)] == [(0.5, 0.7), (0.6, 0.8)]


def test_lines_of_several_ranks_without_their_names_count_with_their_mean(tmp_path):
    found = MetricsCollector(Metrics(pattern=STEPS), tmp_path, ranks=4)
    for line in printed_by(range(4), "step {step} loss {loss} tps {rank}.5 at 12:00:0{rank}"):
        found.add_line(line)
    rows = found.new_rows(final=True)
    assert [(row["epoch"], row["loss"], row["tps"]) for row in rows] == [
        (s, pytest.approx(s + 0.15), 2) for s in (1, 2, 3)
    ]
    assert ": their mean counts; if they are those of several ranks" in found.take_warning()
    assert found.take_warning() == ""
    assert "tps" in found.parsed().of_several_ranks


def test_a_number_that_all_ranks_print_stays_as_it_is(tmp_path):
    found = MetricsCollector(Metrics(pattern="step (?P<step>{number}) acc (?P<acc>{number})"), tmp_path, ranks=3)
    for _ in range(3):
        found.add_line("step 100 acc 0.1")
    (row,) = found.new_rows(final=True)
    assert row["acc"] == 0.1, "0.1 + 0.1 + 0.1 is not 0.3"
    assert isinstance(row["step"], int)


def test_ranks_that_do_not_print_a_step_at_the_same_time_are_said(tmp_path):
    lines = [line for rank in (0, 1) for line in printed_by([rank], "step {step} loss {loss} tps {rank}")]
    found = MetricsCollector(Metrics(pattern=STEPS), tmp_path, ranks=2)
    for line in lines:
        found.add_line(line)
    found.new_rows(final=True)
    assert "tps" in found.parsed().of_several_ranks
    assert ": the last counts; if they are those of several ranks" in found.take_warning()


def test_lines_of_rank_0_alone_are_passed_on_at_once(tmp_path):
    """Of a progress bar, the number of the step tells the lines apart."""
    found = MetricsCollector(Metrics(pattern=STEPS), tmp_path, ranks=4, hold_first_row=False)
    for step in (1, 2, 3):
        found.add_line(f"step {step} loss {step} tps 5")
        assert [row["loss"] for row in found.new_rows()] == [step]
    assert found.take_warning() == ""
    assert found.parsed().of_several_ranks == set()


def test_lines_without_a_step_are_rows_of_their_own_on_several_gpus(tmp_path):
    found = MetricsCollector(Metrics(pattern="acc@1 (?P<acc>{number})"), tmp_path, ranks=2)
    for accuracy in (0.5, 0.6, 0.7):
        found.add_line(f"acc@1 {accuracy}")
    assert [row["acc"] for row in found.new_rows(final=True)] == [0.5, 0.6, 0.7]


def test_patterns_for_training_and_validation_have_a_row_for_all_ranks(tmp_path):
    patterns = ["train (?P<train_loss>{number})", "val (?P<val_loss>{number})"]
    found = MetricsCollector(Metrics(pattern=patterns), tmp_path, ranks=2)
    for step in (1, 2):
        for name in ("train", "val"):
            for rank in (0, 1):
                found.add_line(f"epoch {step}: {name} {step + rank}.0")
    rows = [(row["train_loss"], row["val_loss"]) for row in found.new_rows(final=True)]
    assert rows == [(1.5, 1.5), (2.5, 2.5)]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_first_row_is_held_until_it_is_known_whether_its_epoch_is_repeated(tmp_path):
    def look_at(*lines, **how):
        found = MetricsCollector(Metrics(pattern=r"(?P<epoch>\d+) (?P<loss>\d+)"), tmp_path, **how)
        looks = []
        for line in lines:
            found.add_line(line)
            looks.append([(row["epoch"], row["loss"]) for row in found.new_rows()])
        return looks, [(row["epoch"], row["loss"]) for row in found.new_rows(final=True)]

    assert look_at("1 9", "1 8", "1 7", "2 9", "2 6") == ([[], [], [], [(1, 7)], []], [(2, 6)])
    assert look_at("1 9", "2 8", "3 7") == ([[], [(1, 9), (2, 8)], [(3, 7)]], [])
    assert look_at("1 9") == ([[]], [(1, 9)])
    assert look_at("1 9", hold_first_row=False) == ([[(1, 9)]], []), "a scaling study needs the time of each row"


@pytest.mark.parametrize("count", [1000, 5000])
def test_the_last_value_of_each_metric_is_kept_at_any_rate_of_rows(tmp_path, count):
    metrics = Metrics(file="m.jsonl")
    rows = [{"loss": number} for number in range(count)]
    for place, accuracy in ((400, 0.5), (count - 333, 0.75)):
        rows.insert(place, {"val_accuracy": accuracy})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = MetricsCollector(metrics, tmp_path, resumes=True, burst=BURST_ROWS, clock=Clock())
    told = found.new_rows() + found.new_rows(final=True)
    again = parse_saved_output(metrics, tmp_path, tmp_path / "none", seconds=10)
    assert len(told) == BURST_ROWS + 1
    assert len(again.rows) <= BURST_ROWS + 10
    for kept in (told, again.rows):
        latest = functools.reduce(operator.or_, kept)
        assert latest == {"epoch": count + 2, "loss": count - 1, "val_accuracy": 0.75}
    assert again.metrics == found.latest == {"loss": count - 1, "val_accuracy": 0.75}


def test_the_rate_of_rows_is_limited_but_the_last_row_always_passes(tmp_path):
    clock = Clock()
    found = MetricsCollector(Metrics(pattern=r"loss (?P<loss>\d+)"), tmp_path, clock=clock)
    told = []
    for number in range(5000):
        found.add_line(f"loss {number}")
        told += found.new_rows()
    assert [row["epoch"] for row in told] == [*range(1, BURST_ROWS + 1)]
    clock.now = 3.0
    assert found.new_rows() == [{"epoch": 5000, "loss": 4999}], "the latest row passes as soon as the rate allows"
    assert found.new_rows() == []
    for number in range(9):
        found.add_line(f"loss {number}")
    assert [row["loss"] for row in found.new_rows()] == [0, 1]
    assert found.new_rows(final=True) == [{"epoch": 5009, "loss": 8}]


def test_a_hundred_short_epochs_all_pass(tmp_path):
    for pattern in (r"epoch (?P<epoch>\d+) (?P<loss>\d+)", r"epoch \d+ (?P<loss>\d+)"):
        found = MetricsCollector(Metrics(pattern=pattern), tmp_path, clock=Clock())
        for number in range(1, 101):
            found.add_line(f"epoch {number} {number}")
        assert [row["epoch"] for row in found.new_rows()] == [*range(1, 101)]


@pytest.mark.parametrize("torn", [True, False])
def test_a_file_that_takes_long_to_read_is_read_less_often_and_at_the_end(tmp_path, monkeypatch, torn):
    monkeypatch.setattr("trainyard.programs.metric_files.REST", 10_000)
    found, path = reported(tmp_path, file="m.jsonl"), tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({"acc": epoch}) + "\n" for epoch in range(20_000)))
    assert found.new_rows()
    with open(path, "a") as file:
        file.write('{"acc": 7}\n')
    assert found.new_rows() == []
    assert found.new_rows(final=True, torn=torn)[-1] == {"epoch": 20_001, "acc": 7}


def test_a_rewritten_file_is_read_again_once_it_is_complete(tmp_path):
    found, path = reported(tmp_path, file="m.csv"), tmp_path / "m.csv"
    first = "epoch,acc\n1,0.5\n2,0.6\n"
    path.write_text(first)
    assert len(found.new_rows()) == 2
    path.write_text(first[:12])  # as pandas rewrites it: the same content, and more
    assert found.new_rows() == []
    path.write_text(first + "3,0.7\n")
    assert found.new_rows() == [{"epoch": 3, "acc": 0.7}]
    path.write_text("epoch,loss,acc\n1,9,0.5\n")
    assert found.new_rows() == [{"epoch": 1, "loss": 9, "acc": 0.5}]


@pytest.mark.parametrize("name", ["m.jsonl", "m.csv"])
def test_the_incomplete_line_of_a_rewritten_file_is_discarded(tmp_path, name):
    first, second = {
        "m.jsonl": ('{"acc": 1}\n{"ac', '{"loss": 1}\n{"loss": 2}\n'),
        "m.csv": ("acc\n1\n2", "loss\n1\n2\n3\n"),
    }[name]
    found = reported(tmp_path, file=name)
    (tmp_path / name).write_text(first)
    assert found.new_rows() == [{"epoch": 1, "acc": 1}]
    (tmp_path / name).write_text(second)
    assert [row["loss"] for row in found.new_rows()][:2] == [1, 2]
    assert found.error == ""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.jsonl", '{"epoch": 5, "note": "a\u2028b\x85c", "acc": 0.5}\n'),
        ("m.csv", "epoch,note,acc\r\n5,a\u2028b\x0cc,0.5\r\n"),
        ("m.csv", "\ufeffepoch,acc\n5,0.5\n"),
        ("m.jsonl", '\ufeff{"epoch": 5, "acc": 0.5}\n'),
    ],
    ids=["separators in JSON", "separators in CSV", "byte order mark in CSV", "byte order mark in JSON"],
)
def test_only_line_breaks_end_a_row_and_a_byte_order_mark_is_no_part_of_it(tmp_path, name, content):
    """`str.splitlines` also splits at separators of paragraphs and pages, which JSON allows in texts."""
    found = reported(tmp_path, file=name)
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert found.new_rows(final=True) == [{"epoch": 5, "acc": 0.5}]
    assert found.error == ""


def test_the_last_row_of_a_file_counts_only_if_the_program_could_complete_it(tmp_path):
    """A program that is killed leaves the rest of a number in its buffer: 0.8 of 0.85, say."""
    (tmp_path / "m.csv").write_text("epoch,acc\n1,0.5\n2,0.8")
    for torn, epochs in ((True, [1]), (False, [1, 2])):
        read = parse_saved_output(Metrics(file="m.csv"), tmp_path, tmp_path, seconds=9.0, torn=torn)
        assert [row["epoch"] for row in read.rows] == epochs


@pytest.mark.parametrize("name", ["m.jsonl", "m.csv", "m.json"])
def test_a_file_that_cannot_be_read_now_may_be_readable_later(tmp_path, name):
    """A file server may fail for a moment; a program that succeeds has not failed by it."""
    (tmp_path / name).mkdir()
    found = MetricsCollector(Metrics(file=name), tmp_path, resumes=True, hold_first_row=False)
    assert found.new_rows() == []
    assert found.new_rows(final=True) == []
    assert re.search(f"{name} cannot be read as .*: is a directory", found.error, re.IGNORECASE)
    (tmp_path / name).rmdir()
    (tmp_path / name).write_text("epoch,acc\n1,2\n" if name == "m.csv" else '{"epoch": 1, "acc": 2}\n')
    found = MetricsCollector(Metrics(file=name), tmp_path, resumes=True, hold_first_row=False)
    assert found.new_rows() == [{"epoch": 1, "acc": 2}]


def test_saved_output_is_read_again_with_other_patterns(tmp_path):
    def again(seconds=1, **metrics):
        return parse_saved_output(Metrics.model_validate(metrics), tmp_path, output, seconds=seconds)

    output = tmp_path / "output-1.log"
    output.write_bytes(b"\x1b[1macc=0.5\n" + b"." * 50 + "\nloss=9 ä\nloss=8 ä".encode())
    rows = [{"epoch": 1, "loss": 9}, {"epoch": 2, "loss": 8}]
    assert again(pattern="loss=(?P<loss>{number})") == ParsedOutput(rows, {"loss": 8})
    assert again(pattern="acc=(?P<acc>{number})").metrics == {"acc": 0.5}
    assert again(pattern="acc (?P<acc>{number})").missing.endswith(
        "none were found in its output by acc (?P<acc>{number}): it matches up to acc, "
        "but not the rest,  (?P<acc>{number})"
    )
    assert "only '0'" in again(pattern=r"acc=(?P<acc>\d+)").warning
    (tmp_path / "m.jsonl").write_text('{"acc": 1}\n')
    assert again(file="m.jsonl").rows == [{"epoch": 1, "acc": 1}]
    assert again(file="n.jsonl").missing.endswith(
        "none were found in n.jsonl; did you mean `file: m.jsonl`? It left m.jsonl"
    )
    (tmp_path / "m.jsonl").write_text('{"note": "no numbers"}\n')
    assert again(file="m.jsonl").missing.endswith("none were found in m.jsonl"), "it does not ask for what is set"
    output.write_text("".join(f"loss={number}\n" for number in range(10_000)))
    rows = again(pattern="loss=(?P<loss>{number})", seconds=10).rows
    assert 150 <= len(rows) <= BURST_ROWS + 10
    assert rows[-1] == {"epoch": 10_000, "loss": 9999}


@pytest.mark.parametrize(
    ("pattern", "written", "is_said"),
    [
        ("log.jsonl", "log.jsonl", True),
        ("logs/*/m.csv", "logs/version_3/m.csv", True),
        ("**/m.csv", "a/m.csv", False),
        ("runs/*/m.csv", "runs/other/m.csv", False),
    ],
)
def test_a_file_that_all_trials_write_is_named_with_what_keeps_it_apart(
    tmp_path, monkeypatch, pattern, written, is_said
):
    """The same command would read the same saved output for ever."""
    monkeypatch.chdir(tmp_path)
    trial = tmp_path / "runs" / "trial"
    trial.mkdir(parents=True)
    shared = tmp_path / written
    shared.parent.mkdir(parents=True, exist_ok=True)
    shared.write_text("{}")
    began = shared.stat().st_mtime

    def missing(began):
        return parse_saved_output(Metrics(file=pattern), trial, trial / "none", seconds=1, began=began).missing

    found = missing(began - 1)
    remedy = "where all trials run: set `workdir: trial`, and increase `retrain` to run them again"
    assert found.endswith(f"none were found in {pattern}; {written} is in {tmp_path}, {remedy}") == is_said
    assert "workdir" not in missing(began + 1), "it is older than the trial"
    (trial / written).parent.mkdir(parents=True, exist_ok=True)
    (trial / written).write_text("")
    assert "workdir" not in missing(began - 1), "the trial has its own"


def test_what_is_read_again_has_the_best_epoch_and_the_last_ones_of_many(tmp_path):
    values = [0.5] * 1000
    values[500], values[502] = 0.99, 0.01
    (tmp_path / "m.jsonl").write_text("".join(json.dumps({"acc": value}) + "\n" for value in values))
    rows = parse_saved_output(Metrics(file="m.jsonl"), tmp_path, tmp_path / "none", seconds=100).rows
    assert 200 <= len(rows) <= BURST_ROWS + 100
    assert [row for row in rows if row["acc"] != 0.5] == [{"epoch": 501, "acc": 0.99}, {"epoch": 503, "acc": 0.01}]
    assert [row["epoch"] for row in rows[-30:]] == [*range(971, 1001)]
