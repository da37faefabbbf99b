"""What the checks are about: a cluster, a config and a Snakemake profile. Each is asked once."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from trainyard.checks.sbatch_requests import Refusal, SbatchRequest, request_jobs
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
    def jobs(self) -> tuple[list[SbatchRequest], list[Refusal]]:
        """The jobs of the config that would be submitted, and those that would not."""
        return request_jobs(self.config_file, self.profile)

    @property
    def requests(self) -> list[SbatchRequest]:
        """The jobs that would be submitted."""
        return self.jobs[0]

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
