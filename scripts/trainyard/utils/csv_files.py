"""CSV tables: reading and atomic writing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from trainyard.utils.errors import MissingResultError
from trainyard.utils.files import atomic_write


def read_table(path: Path) -> pd.DataFrame:
    """The table in a CSV file. Only an empty cell is a missing value: `None` and `nan` may be values of a key.

    The identity of a trial is text, also if it is `0012345678` or `12345e6789`.

    Raises:
        MissingResultError: the file does not exist.
    """
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={"trial": str})
    except FileNotFoundError:
        raise MissingResultError(path) from None


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, with 15 significant digits."""
    with atomic_write(path) as file:
        frame.to_csv(file, index=False, float_format="%.15g")


def write_parquet(path: Path) -> None:
    """Write a Parquet file with the same columns and values beside a CSV table."""
    with atomic_write(path.with_suffix(".parquet"), "wb") as file:
        read_table(path).to_parquet(file, index=False)


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write mappings with the same keys as the rows of a CSV."""
    write_table(pd.DataFrame(list(rows)), path)
