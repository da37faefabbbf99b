"""Trials that call a Python function of the user, which is imported when it is first called."""

import os
from collections.abc import Callable
from typing import Any

from trainyard.kinds.program import ProgramTrials
from trainyard.packing.messages import Assignment
from trainyard.packing.trial_kind import Report
from trainyard.programs.function import Context, run_function
from trainyard.programs.trial_messages import TrialEnded
from trainyard.utils.guarded_process import hold_folder
from trainyard.utils.import_path import import_object


class FunctionTrials(ProgramTrials):
    """Calls a function for each trial."""

    def run(self, assignment: Assignment, report: Report) -> TrialEnded:
        """Call the function with the settings of a trial."""
        os.chdir(self.setup.cwd or ".")  # the function of an earlier trial may have left it
        for folder in (assignment.folder, assignment.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        context = Context(
            assignment.trial,
            assignment.attempt,
            assignment.folder,
            assignment.checkpoints,
            self.dataset.folder if self.dataset else None,
            assignment.deadline,
            self.setup.gpus,
            self.setup.threads,
            self.stop_request,
        )
        with hold_folder(assignment.folder, purpose=f"trial {assignment.trial}", grace_seconds=0.0):
            function, config = self.find_function(assignment)
            return run_function(function, config, context, report)

    def find_function(self, assignment: Assignment) -> tuple[Callable[[Any, Context], Any], Any]:
        """The function, and its first argument. It runs in the folder of the trial if the sweep says so."""
        assert assignment.spec.function is not None
        function = import_object(assignment.spec.function, role="function")
        if self.setup.sweep.has_workdirs:
            os.chdir(assignment.folder)
        return function, assignment.spec.args


KIND = FunctionTrials
