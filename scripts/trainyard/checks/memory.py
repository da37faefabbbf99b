"""Check of the memory that jobs request, against the nodes' memory and the datasets."""

from collections.abc import Iterator, Sequence

from trainyard.checks.findings import Finding
from trainyard.checks.sbatch_requests import SbatchRequest
from trainyard.checks.site import Site
from trainyard.cluster.slurm_queries import Partition
from trainyard.planning.memory_request import data_mib


def check_memory(site: Site) -> Iterator[Finding]:
    """Every job requests enough for its dataset, and at most its GPUs' share of a node."""
    fitting = []
    for request in site.requests:
        kinds = [each for each in site.partitions if each.name == site.partition_of(request)]
        finding = judge_memory(request, kinds, data_mb=data_mib(site.results, request.dataset))
        if finding:
            yield finding
        else:
            fitting.append(request)
    if fitting:
        least, most = (choose(each.mem_mb for each in fitting) for choose in (min, max))
        amounts = f"{least:g} to {most:g}" if least < most else f"{least:g}"
        share = "at most the share of the jobs' GPUs, and " * any(each.gpu_count for each in fitting)
        yield Finding("memory", "ok", f"{amounts} MB per node: {share}enough for their data")


def judge_memory(request: SbatchRequest, kinds: Sequence[Partition], *, data_mb: float) -> Finding | None:
    """A warning about the memory of a job on nodes of these kinds; None if there is none."""
    memory = request.mem_mb
    if 0 < memory < data_mb:
        message = f"{request.job}: {memory:g} MB per node, but its dataset has {data_mb:,.0f} MB"
        remedy = "request more with `--set-resources <rule>:mem_mb=...`: data that do not fit are read again and again"
        return Finding("memory", "warns", message, remedy)
    model = request.gpus.rpartition(":")[0]
    shares = [share for each in kinds if (share := each.memory_share_mb(request.gpu_count, model))]
    if shares and memory > max(shares):
        message = f"{request.job}: {memory:g} MB per node, above the share of its {request.gpu_count} GPUs: "
        remedy = "request less, unless the job needs it: other jobs cannot use the GPUs that are left without memory"
        return Finding("memory", "warns", f"{message}{max(shares):g} MB", remedy)
    return None
