"""CSV tables: read, and written atomically."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from trainyard.utils.files import atomic_write


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV of `write_table`. Only an empty cell is a missing value: `None` and `nan` may be values of a key."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a CSV, atomically, with as many digits as tell two measurements apart."""
    with atomic_write(path) as file:
        frame.to_csv(file, index=False, float_format="%.15g")


def write_parquet(path: Path) -> None:
    """Write a CSV table as Parquet, too, beside it, atomically: the same columns and values."""
    with atomic_write(path.with_suffix(".parquet"), "wb") as file:
        read_table(path).to_parquet(file, index=False)


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write equal mappings as a CSV, as `write_table` does."""
    write_table(pd.DataFrame(list(rows)), path)
