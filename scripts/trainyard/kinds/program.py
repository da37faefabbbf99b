"""What the kinds of trials have in common that run programs: their threads, and the dataset on the node."""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trainyard.cluster.gpus import first_gpu_name
from trainyard.packing.messages import WorkerSetup
from trainyard.packing.trial_kind import TrialKind
from trainyard.programs.user_environment import gpu_memory_variables, thread_variables
from trainyard.utils.environment_variables import changed_environment, set_variables

if TYPE_CHECKING:
    from trainyard.data.staged import Staged


class ProgramTrials(TrialKind):
    """Runs programs, or calls functions, which import what they need themselves."""

    def prepare(self) -> tuple[str, dict[str, Any]]:
        """Set the number of threads, and copy the dataset."""
        variables = self.setup.variables
        limits = gpu_memory_variables(self.setup.gpu_share, changed_environment(os.environ, variables))
        set_variables(thread_variables(self.setup.threads) | limits | variables)
        self.dataset, copied = copy_dataset(self.setup, self.resources)
        return first_gpu_name() or "cpu", copied


def copy_dataset(setup: WorkerSetup, resources: ExitStack) -> "tuple[Staged | None, dict[str, Any]]":
    """The dataset of a sweep, copied to the node if that is faster, and what that took; `resources` hold the copy."""
    if setup.dataset is None:
        return None, {"copy_seconds": 0.0, "copy": ""}
    from trainyard.data.node_copy import local_copy  # imports numpy
    from trainyard.data.staged import Staged

    policy = setup.data.local if setup.nodes == 1 else "off"  # the ranks have copies on all nodes
    copy = resources.enter_context(local_copy(Staged(setup.dataset), policy))
    return copy.staged, {"copy_seconds": copy.seconds, "copy": copy.message}
