"""Staging keeps pixels and rows as they are, and reports what it cannot use."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from trainyard.checks.program_checks import check_source
from trainyard.config.datasets import Digits, Synthetic, Table
from trainyard.data.known_images import KnownImages, known_images
from trainyard.data.sources import stratified_split
from trainyard.data.staged import TARGET, DataError, Staged, TableMeta
from trainyard.data.staging import stage

SMALL = Synthetic(source="synthetic", images=9)


def test_digits_are_staged_completely_and_stratified(tmp_path):
    from sklearn.datasets import load_digits  # its import takes a second

    staged = stage(Digits(source="digits"), tmp_path)
    train, val = staged.split("train"), staged.split("val")
    assert train.images.shape == (1437, 8, 8, 1)
    assert train.images.dtype == np.uint8
    assert train.labels.dtype == np.int64
    assert len(val.labels) == 360
    both = np.concatenate([train.images, val.images])[..., 0] * (16 / 255)
    original = load_digits().images
    assert sorted(map(bytes, np.round(both).astype(np.uint8))) == sorted(map(bytes, original.astype(np.uint8)))
    shares = np.bincount(val.labels) / np.bincount(np.concatenate([train.labels, val.labels]))
    assert np.allclose(shares, 0.2, atol=0.01)


def test_staging_is_deterministic_and_skipped_when_done(tmp_path):
    one, other = (stage(SMALL, tmp_path / name) for name in ("one", "other"))
    assert one.meta == other.meta
    times = {path: path.stat().st_mtime_ns for path in one.folder.glob("[!.]*")}
    stage(SMALL, tmp_path / "one")
    assert {path: path.stat().st_mtime_ns for path in one.folder.glob("[!.]*")} == times


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_damaged_staged_files_are_staged_again(tmp_path, damage):
    staged = stage(SMALL, tmp_path)
    path, digest = tmp_path / "train-images.npy", staged.digest
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert stage(SMALL, tmp_path).digest == digest
    assert Staged(tmp_path).split("train").images.shape == (9, 32, 32, 3)


def test_other_options_result_in_other_data(tmp_path):
    before = stage(SMALL, tmp_path).digest
    assert stage(Synthetic(source="synthetic", images=9, classes=3), tmp_path).digest != before


def test_the_metadata_has_the_same_keys_as_ever(tmp_path):
    """Others may read them."""
    write_table(tmp_path / "table.csv", frame())
    staged = {
        "images": stage(SMALL, tmp_path / "images"),
        "table": stage(Table(source="table", path=str(tmp_path / "table.csv"), target="price"), tmp_path / "table"),
    }
    content = {name: json.loads((each.folder / "meta.json").read_text()) for name, each in staged.items()}
    always = {"kind", "source", "classes", "files", "versions", "digest"}
    images = {"shape", "mean", "std", "counts", "handled", "problems"}
    assert content["images"].keys() == always | images
    assert content["table"].keys() == always | {"task", "columns"}
    assert [each["kind"] for each in content.values()] == ["images", "table"]
    assert content["images"]["shape"] == [32, 32, 3]


@pytest.mark.parametrize(
    "damage", ["", "[]", "{}", '{"kind": "images", "digest": "d"}', '{"kind": "new", "digest": "d"}']
)
def test_damaged_metadata_is_explained_and_staged_again(tmp_path, damage):
    before = stage(SMALL, tmp_path).meta
    (tmp_path / "meta.json").write_text(damage)
    with pytest.raises(
        DataError, match=r"meta\.json is damaged or of another version: remove it and run Snakemake's target `data`"
    ):
        Staged(tmp_path).split("train")
    assert not known_images(SMALL, tmp_path).is_staged
    assert stage(SMALL, tmp_path).meta == before


def test_a_class_of_one_image_can_be_split():
    train, val = stratified_split(np.array([0, 0, 0, 0, 1]), 0.4)
    assert sorted([*train, *val]) == [0, 1, 2, 3, 4]


def frame(rows=40):
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": generator.normal(size=rows),
            "colour": ["red", "blue"] * (rows // 2),
            "kind": ["a", "b"] * (rows // 2),
            "price": generator.normal(size=rows),
        }
    )


def test_columns_of_one_name_in_parquet_are_an_error_of_one_line(tmp_path):
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pyarrow.table([[1, 2], [3, 4], [5, 6]], names=["a", "a", "price"]), path)
    dataset, message = Table(source="table", path=str(path), target="price"), "several columns have the name 'a'"
    assert message in check_source("datasets.d", dataset, KnownImages(), has_scheduler=False).message
    with pytest.raises(DataError, match=f"^{path}: is not a readable parquet file [(]{message}: rename them[)]$"):
        stage(dataset, tmp_path / "staged")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("target", "task"), [("kind", "classification"), ("price", "regression")])
def test_tables_are_staged_from_csv_and_parquet(tmp_path, suffix, target, task):
    path = tmp_path / f"table.{suffix}"
    frame().to_csv(path, index=False) if suffix == "csv" else frame().to_parquet(path)
    staged = stage(Table(source="table", path=str(path), target=target), tmp_path / "staged")
    meta = staged.require(TableMeta)
    assert meta.task == task
    assert staged.meta.classes == (["a", "b"] if target == "kind" else [])
    assert target not in meta.columns
    parts = [pd.read_parquet(tmp_path / "staged" / f"{name}.parquet") for name in ("train", "val")]
    assert [len(part) for part in parts] == [32, 8]
    assert TARGET in parts[0].columns


def write_table(path, table):
    table.to_csv(path, index=False)
    return path


BAD_TABLES = [
    (lambda path: path, "price", "cannot be read"),
    (lambda path: write_table(path, frame()), "prize", "no target column 'prize'; columns: size, colour, kind, price"),
    (
        lambda path: write_table(path, frame().assign(price=[None] + [1.0] * 39)),
        "price",
        "1 rows have no value in the target",
    ),
    (lambda path: path.write_bytes(b"\x00\xff\x00"), "price", "is not a readable csv file"),
    (lambda path: write_table(path, frame(0)), "price", "table.csv: has no rows"),
    (lambda path: write_table(path, frame(2)[:1]), "price", "held out for validation: it has one row only$"),
    (lambda path: write_table(path, frame()[["price"]]), "price", "has no column besides the target 'price'$"),
]
BAD_TABLE_IDS = ["missing", "target", "unlabelled", "not a table", "empty", "row", "no feature"]


@pytest.mark.parametrize(("make", "target", "message"), BAD_TABLES, ids=BAD_TABLE_IDS)
def test_an_unusable_table_is_reported(tmp_path, make, target, message):
    make(tmp_path / "table.csv")
    with pytest.raises(DataError, match=message):
        stage(Table(source="table", path=str(tmp_path / "table.csv"), target=target), tmp_path / "staged")
    assert not (tmp_path / "staged/meta.json").exists()


@pytest.mark.parametrize(
    ("target", "values"), [("kind", "40 rows .* but [ab], [ab]"), ("price", "table.csv: 1 rows .* but inf")]
)
def test_a_target_of_a_regression_that_is_no_number_is_reported(tmp_path, target, values):
    path = write_table(tmp_path / "table.csv", frame().assign(price=[float("inf")] + [1.0] * 39))
    with pytest.raises(DataError, match=values):
        stage(Table(source="table", path=str(path), target=target, task="regression"), tmp_path / "staged")


DAY = np.datetime64("2020-01-01")
COLUMNS = {  # of a Parquet file, and what is staged of their first rows
    "booleans with missing values": ([True, None, False], ["True", None, "False"]),
    "dates": ([datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 2)], [1577836800, None, 1577923200]),
    "points in time": ([DAY, None, DAY + np.timedelta64(36, "h")], [1577836800, None, 1577966400]),
    "durations": ([np.timedelta64(90, "s"), None, np.timedelta64(1, "D")], [90, None, 86400]),
    "decimals": ([Decimal("0.5"), None, Decimal("2.25")], [0.5, None, 2.25]),
    "times of day": ([datetime.time(9, 30), None, datetime.time(12)], ["09:30:00", None, "12:00:00"]),
    "bytes": ([b"x", None, b"y"], ["b'x'", None, "b'y'"]),
    "dates of all years": ([datetime.date(9999, 12, 31), None, datetime.date(1500, 1, 1)],
                           [253402214400, None, -14831769600]),
    "points in time of all years": ([np.datetime64("9999-12-31", "us"), None, np.datetime64("1500-01-01", "us")],
                                    [253402214400, None, -14831769600]),
    "no values": ([None, None, None], [None, None, None]),
    "numbers of Arrow": (pd.array([1, None, 3], "int64[pyarrow]"), [1, None, 3]),
    "points in time of Arrow": (pd.array([DAY, None, DAY], "timestamp[us][pyarrow]"), [1577836800, None, 1577836800]),
}  # fmt: skip


@pytest.mark.parametrize(("values", "expected"), COLUMNS.values(), ids=COLUMNS)
def test_each_column_is_staged_as_numbers_or_as_categories_of_text(tmp_path, values, expected):
    """Parquet has no other categories: both libraries refuse the plain objects that it returns for them."""
    table = frame(60).assign(odd=pd.concat([pd.Series(values)] * 20, ignore_index=True))
    table.to_parquet(tmp_path / "table.parquet")
    dataset = Table(source="table", path=str(tmp_path / "table.parquet"), target="price")
    staged = stage(dataset, tmp_path / "staged")
    train, val = (pd.read_parquet(staged.folder / f"{name}.parquet") for name in ("train", "val"))
    odd = pd.concat([train, val]).sort_index()["odd"]
    assert [None if pd.isna(value) else value for value in odd[:3]] == expected
    assert train["odd"].dtype == val["odd"].dtype
    assert train["odd"].dtype.name == ("category" if isinstance(expected[0], str) else "float64")


def test_a_column_of_a_long_csv_file_has_one_type(tmp_path):
    """pandas guesses a type for each million of its values unless it is told not to."""
    codes = [f"{code:05d}" for code in range(10_000)] + ["A12"]
    others = pd.DataFrame(0, index=range(len(codes)), columns=[f"x{number}" for number in range(126)])
    path = write_table(tmp_path / "table.csv", others.assign(code=codes, price=np.arange(len(codes)) / 2))
    staged = stage(Table(source="table", path=str(path), target="price"), tmp_path / "staged")
    assert set(pd.read_parquet(staged.folder / "train.parquet")["code"].cat.categories) == set(codes)


@pytest.mark.parametrize("value", [[1.0, 2.0], {"a": 1}])
def test_a_column_of_lists_is_reported(tmp_path, value):
    frame().assign(vector=[value] * 40).to_parquet(tmp_path / "table.parquet")
    with pytest.raises(DataError, match=r"the column 'vector' has values of the type .*: write each of their parts"):
        stage(Table(source="table", path=str(tmp_path / "table.parquet"), target="price"), tmp_path / "staged")


def test_a_type_that_pandas_does_not_read_is_reported(tmp_path):
    values = pd.Series([[1], [2]] * 20, dtype=pd.ArrowDtype(pyarrow.list_(pyarrow.int64())))
    frame().assign(vector=values).to_parquet(tmp_path / "table.parquet")
    with pytest.raises(DataError, match=r"table.parquet: is not a readable parquet file \(data type 'list<"):
        stage(Table(source="table", path=str(tmp_path / "table.parquet"), target="price"), tmp_path / "staged")


def test_a_table_of_which_no_row_can_be_held_out_is_reported(tmp_path):
    """A quantity in whole numbers, such as a price, is taken for classes."""
    path = write_table(tmp_path / "table.csv", frame().assign(price=range(1000, 1040)))
    table = Table(source="table", path=str(path), target="price")
    with pytest.raises(DataError, match=r"each of the 40 classes in the column 'price' has one row only; .*regress"):
        stage(table, tmp_path / "staged")
    assert stage(table.model_copy(update={"task": "regression"}), tmp_path / "staged").require(TableMeta)


def test_the_path_of_a_table_may_begin_in_the_home_folder(tmp_path, monkeypatch):
    write_table(tmp_path / "table.csv", frame())
    monkeypatch.setenv("HOME", str(tmp_path))
    table = Table(source="table", path="~/table.csv", target="price")
    assert stage(table, tmp_path / "staged").require(TableMeta)
    assert check_source("datasets.t", table, KnownImages(), has_scheduler=False).verdict == "ok"


def test_a_table_that_changed_is_staged_again(tmp_path):
    path = write_table(tmp_path / "table.csv", frame())
    table = Table(source="table", path=str(path), target="price")
    before = stage(table, tmp_path / "staged").digest
    write_table(path, frame(60))
    assert stage(table, tmp_path / "staged").digest != before
