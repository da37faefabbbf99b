"""Trials that call a Python function of the user, which is imported when it is first called."""

import os
from collections.abc import Callable
from typing import Any

from trainyard.kinds.program import ProgramTrials
from trainyard.packing.messages import TrialRequest
from trainyard.packing.trial_kind import Report
from trainyard.programs.function import Context, run_function
from trainyard.programs.trial_messages import TrialEnded
from trainyard.utils.guarded_process import claim_folder
from trainyard.utils.import_path import import_object


class FunctionTrials(ProgramTrials):
    """Calls a function for each trial."""

    def run(self, request: TrialRequest, report: Report) -> TrialEnded:
        """Call the function with the settings of a trial."""
        os.chdir(self.setup.cwd or ".")  # the function of an earlier trial may have left it
        for folder in (request.folder, request.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        context = Context(
            request.trial,
            request.attempt,
            request.folder,
            request.checkpoints,
            self.dataset.folder if self.dataset else None,
            request.deadline,
            self.setup.gpus,
            self.setup.threads,
            self.stop_request,
        )
        with claim_folder(request.folder, purpose=f"trial {request.trial}", grace_seconds=0.0):
            function, config = self.find_function(request)
            return run_function(function, config, context, report)

    def find_function(self, request: TrialRequest) -> tuple[Callable[[Any, Context], Any], Any]:
        """The function, and its first argument. It runs in the folder of the trial if the sweep says so."""
        assert request.spec.function is not None
        function = import_object(request.spec.function, role="function")
        if self.setup.sweep.has_workdirs:
            os.chdir(request.folder)
        return function, request.spec.args


KIND = FunctionTrials
