"""What the checks are about: a cluster, a config and a Snakemake profile. Each is asked once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from trainyard.checks.sbatch_rehearsal import Rehearsal, rehearse_submission, workflow_jobs
from trainyard.checks.sbatch_request import SbatchRequest
from trainyard.cluster import host, slurm_limits, slurm_queries
from trainyard.cluster.slurm_limits import Limits
from trainyard.cluster.slurm_queries import Partition, PartitionSettings
from trainyard.config.config import Config


@dataclass
class Site:
    """A cluster, a config and a Snakemake profile."""

    config: Config
    config_file: Path
    profile: Path
    results: Path
    user: str = field(default_factory=host.user_name)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """What becomes of the jobs of the config."""
        return rehearse_submission(self.config, self.config_file, profile=self.profile, results=self.results)

    @property
    def requests(self) -> Sequence[SbatchRequest]:
        """The jobs that would be submitted."""
        return self.rehearsal.requests

    @cached_property
    def partitions(self) -> list[Partition]:
        """The cluster's partitions."""
        return slurm_queries.list_partitions()

    @cached_property
    def partition_settings(self) -> dict[str, PartitionSettings]:
        """The settings of the partitions, by name."""
        return {each.name: each for each in slurm_queries.list_partition_settings()}

    @cached_property
    def controller(self) -> dict[str, str]:
        """The settings of Slurm's controller."""
        return slurm_queries.controller_settings()

    def partition_of(self, request: SbatchRequest) -> str:
        """The name of the partition that a job would run in; the first one, if it requests several."""
        default = next((each.name for each in self.partitions if each.default), "")
        return (request.options.partition or default).split(",")[0]

    def dataset_of(self, request: SbatchRequest) -> str | None:
        """The dataset that a job reads, if any."""
        return next((each.dataset for each in workflow_jobs(self.config)[1] if each.is_of(request.job)), None)

    def limits_of(self, request: SbatchRequest) -> list[Limits]:
        """The limits of the accounting for a job, in Slurm's order of precedence."""
        options = request.options
        key = (options.account or "", options.qos or "", self.partition_of(request))
        if key not in self._limits:
            account, qos, partition = key
            self._limits[key] = slurm_limits.list_limits(self.user, account=account, qos=qos, partition=partition)
        return self._limits[key]

    @cached_property
    def _limits(self) -> dict[tuple[str, str, str], list[Limits]]:
        return {}
