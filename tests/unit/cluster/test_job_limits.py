"""How limits of the accounting affect a request."""

import math

from trainyard.cluster.slurm_limits import JobLimits, Limits

LEVELS = (
    Limits("QOS part", {"cpu per job": 64}),
    Limits("QOS long", {"minutes of walltime": 120, "gres/gpu per job": 8, "gres/gpu in all jobs": 4}),
    Limits("account lab", {"minutes of walltime": 60, "gres/gpu in all jobs": 2}),
)


def test_the_first_level_with_a_limit_decides():
    limits = JobLimits(LEVELS)
    assert (limits.minutes, limits.gpus) == (120, 4)
    assert (JobLimits().minutes, JobLimits().gpus) == (math.inf, math.inf)


def test_a_limit_on_a_type_of_gpus_counts_for_jobs_that_request_it():
    typed = (Limits("QOS a", {"gres/gpu:a100 per job": 2}), *LEVELS)
    assert [JobLimits(typed, kind).gpus for kind in ("", "a100", "h100")] == [4, 2, 4]
    assert JobLimits(typed, "a100").describe(60, gpus=4, max_gpus=4) == (
        "; above the limit of QOS a: 2 GPUs, so that Slurm would never start it"
    )


def test_only_limits_that_affect_a_request_are_described():
    limits = JobLimits(LEVELS)
    assert limits.describe(120, gpus=4, max_gpus=4) == ""
    assert limits.describe(121, gpus=2, max_gpus=8) == (
        "; limited by QOS long: 2 h 0 min of walltime; limited by QOS long: 4 GPUs"
    )
    assert limits.describe(0, gpus=8, max_gpus=8) == (
        "; above the limit of QOS long: 4 GPUs, so that Slurm would never start it"
    )
