"""Trials that fit gradient-boosted trees. A fit is a function of Trainyard's own."""

from collections.abc import Callable
from typing import Any

from trainyard.kinds.function import FunctionTrials
from trainyard.packing.messages import Assignment
from trainyard.programs.function import Context


class TreeTrials(FunctionTrials):
    """Fits trees."""

    def find_function(self, assignment: Assignment) -> tuple[Callable[[Any, Context], Any], Any]:
        """The fit, and its settings."""
        from trainyard.trees.boosting import fit_trial  # imports numpy, and later the library

        return fit_trial, assignment.spec


KIND = TreeTrials
