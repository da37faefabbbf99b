"""Staging a CSV or Parquet table for tree models: {train,val}.parquet, with the target as the last column.

Numbers and booleans stay as they are. Points in time and durations become seconds, decimals and Arrow's numbers
floating-point numbers, and all other values categories of text: Parquet would return other categories as plain objects,
which no model takes.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.config.datasets import Table
from trainyard.data.sources import stratified_split
from trainyard.data.staged import SPLITS, TARGET, DataError, TableMeta
from trainyard.utils.files import atomic_write, expand_path, file_digest
from trainyard.utils.text import printable


def table_digest(dataset: Table) -> str:
    """The digest of the source file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return file_digest(expand_path(dataset.path))
    except OSError as error:
        raise DataError(
            f"{dataset.path}: cannot be read ({error.strerror}); `path` is relative to the folder where Snakemake runs"
        ) from None


def stage_table(dataset: Table, folder: Path) -> TableMeta:
    """Write both splits; returns their metadata.

    Raises:
        DataError: the table cannot be used.
    """
    import pandas as pd

    frame = _read_table(expand_path(dataset.path))
    if dataset.target not in frame.columns:
        columns = ", ".join(map(str, frame.columns))
        raise DataError(f"{dataset.path}: there is no target column {dataset.target!r}; columns: {columns}")
    unlabelled = int(frame[dataset.target].isna().sum())
    if unlabelled:
        raise DataError(f"{dataset.path}: {unlabelled} rows have no value in the target column {dataset.target!r}")
    target = frame.pop(dataset.target)
    if not len(frame.columns):
        raise DataError(f"{dataset.path}: has no column besides the target {dataset.target!r}")
    task = dataset.task
    if task == "auto":
        task = "regression" if target.dtype.kind == "f" else "classification"
    classes: list[str] = []
    if task == "classification":
        names, codes = np.unique(target.astype(str) if target.dtype.kind not in "iuf" else target, return_inverse=True)
        classes = [str(name) for name in names]
        frame[TARGET] = codes.astype(np.int64)
    else:
        frame[TARGET] = _as_numbers(target, dataset)
    for column in frame.columns:
        dtype = frame[column].dtype
        if dtype.kind not in "iufb" or isinstance(dtype, pd.ArrowDtype):  # LightGBM refuses the types of Arrow
            frame[column] = _as_feature(frame[column], dataset)
    for name, rows in _split_rows(frame, classes, dataset).items():
        with atomic_write(folder / f"{name}.parquet", "wb") as file:
            frame.iloc[rows].to_parquet(file)
    files = {f"{name}.parquet": file_digest(folder / f"{name}.parquet") for name in SPLITS}
    return TableMeta(task=task, classes=classes, columns=[str(name) for name in frame.columns[:-1]], files=files)


def _split_rows(frame: Any, classes: list[str], dataset: Table) -> dict[str, Any]:
    """The numbers of the rows of each split, in ascending order.

    Raises:
        DataError: no row can be held out.
    """
    strata = frame[TARGET].to_numpy() if classes else np.zeros(len(frame), np.int64)
    splits = dict(zip(SPLITS, stratified_split(strata, dataset.val_fraction), strict=True))
    if len(splits["val"]):
        return splits
    reason = "it has one row only"
    remedy = ""
    if len(classes) > 1:
        reason = f"each of the {len(classes)} classes in the column {dataset.target!r} has one row only"
        remedy = "; if they are quantities, set `task: regression`"
    raise DataError(f"{dataset.path}: no row can be held out for validation: {reason}{remedy}")


def _as_feature(column: Any, dataset: Table) -> Any:
    """A column of another type as plain numbers or as categories of text; missing values stay missing.

    Raises:
        DataError: its values have parts, as those of a list.
    """
    from pandas import Series, Timestamp
    from pandas.api.types import infer_dtype

    kind = infer_dtype(column, skipna=True)
    if column.isna().all():
        return Series(np.nan, column.index)
    if kind == "decimal" or column.dtype.kind in "iufb":
        return column.astype(np.float64)
    if kind == "date":
        column = column.astype("datetime64[s]")
    if column.dtype.kind == "M":
        # Nanoseconds would end in 2262, but 9999-12-31 is common.
        column = column - Timestamp(0, tz=column.dt.tz).as_unit("s")
    if column.dtype.kind == "m":
        return column.dt.total_seconds().astype(np.float64)
    if kind == "categorical":
        return column.cat.rename_categories(str)
    if kind == "string":
        return column.astype("category")
    if parts := {type(value).__name__ for value in column if isinstance(value, (list, dict, set, np.ndarray))}:
        raise DataError(
            f"{dataset.path}: the column {column.name!r} has values of the type {min(parts)}: write each of their "
            "parts to a column of its own, or leave the column out"
        )
    return column.astype(object).map(str, na_action="ignore").astype("category")


def _as_numbers(target: Any, dataset: Table) -> Any:
    """The target of a regression as float64.

    Raises:
        DataError: a value is not a finite number.
    """
    import pandas as pd

    numbers = pd.to_numeric(target, errors="coerce").astype(np.float64)
    wrong = target[~np.isfinite(numbers)]
    if len(wrong):
        values = printable(", ".join(map(str, wrong.unique()[:3])))
        raise DataError(
            f"{dataset.path}: {len(wrong)} rows have no finite number in the target column {dataset.target!r}, but "
            f"{values}: correct them, or set `task: classification`"
        )
    return numbers


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns of a Parquet file.

    Raises:
        ValueError: it is no Parquet file, or several columns have the same name, so that pandas cannot read it.
    """
    from pyarrow.parquet import read_schema

    names = [str(name) for name in read_schema(path).names]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise ValueError(f"several columns have the name {name!r}: rename them")
    return names


def _read_table(path: Path) -> Any:
    import pandas as pd

    try:
        # Otherwise pandas guesses the type of a column for each part of a CSV file.
        if path.suffix == ".parquet":
            parquet_columns(path)
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, low_memory=False)
    except (ValueError, TypeError, OSError) as error:  # a TypeError for the type of a column
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: is not a readable {path.suffix[1:]} file ({reason})") from None
    if frame.empty:
        raise DataError(f"{path}: has no rows")
    return frame
