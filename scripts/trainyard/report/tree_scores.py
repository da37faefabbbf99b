"""The best of the tree models of a study."""

import pandas as pd

from trainyard.utils.text import format_precise_duration


def best_model(trees: pd.DataFrame) -> int:
    """The row of the model with the best validation score in trees.csv."""
    return int(trees["val"].argmin() if trees["metric"].iloc[0] == "rmse" else trees["val"].argmax())


def describe_best_model(trees: pd.DataFrame) -> str:
    """One line about the best model."""
    best = trees.iloc[best_model(trees)]
    extreme = "lowest" if best["metric"] == "rmse" else "highest"
    value = f"best validation {best['metric']} ({extreme}): {best['val']:.4g}"
    return f"{value}, by {best['model']} in {format_precise_duration(best['seconds'])}"
