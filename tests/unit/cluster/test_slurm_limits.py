"""The limits of Slurm's accounting: which apply to a job, and in which order."""

import pytest
from trainyard.cluster import slurm_limits, slurm_queries
from trainyard.cluster.slurm_limits import combine_limits

# As Slurm 22.05 prints them.
CONFIG = "AccountingStorageEnforce = associations,limits\nClusterName             = trainyard\n"
PARTITIONS = """\
PartitionName=gpu AllowQos=ALL Default=YES QoS=N/A GraceTime=0 MaxTime=1-00:00:00 PreemptMode=OFF State=UP
PartitionName=short AllowQos=ALL Default=NO QoS=part GraceTime=120 MaxTime=01:00:00 PreemptMode=CANCEL State=UP
"""
ASSOCIATIONS = {  # by the condition on the user; the first line is another cluster's
    "user=ann": """\
other|lab|ann||||gres/gpu=1|gres/gpu=1|00:01:00|1|1|1|1
trainyard|lab|ann|||||gres/gpu=4|03:00:00|||7|20
trainyard|free|ann||||||||||
""",
    "user=": """\
trainyard|root|||||||||||
trainyard|lab|||root||gres/gpu=16||||||30
trainyard|free|||root||||||||
""",
}
LEVELS = """\
normal|||||||||||
long|gres/gpu=8|gres/gpu=2,node=2|1-12:00:00|||2|3|gres/gpu=4|||mem=500G
part||||||||gres/gpu:a100=1,gres/gpu=6|||
"""


@pytest.fixture
def accounting(slurm):
    """Slurm with these answers, which a test may change."""
    slurm.prints("scontrol", CONFIG, of="show config")
    slurm.prints("scontrol", PARTITIONS, of="show partitions")
    for query, rows in ASSOCIATIONS.items():
        slurm.prints("sacctmgr", rows, of=f"show associations {query} ")
    slurm.prints("sacctmgr", "lab|normal,long\nfree|normal,long\n", of="format=Account,QOS")
    slurm.prints("sacctmgr", "lab\n", of="show user")
    slurm.prints("sacctmgr", LEVELS, of="show qos")
    return slurm


def test_all_levels_are_found_in_slurms_order_and_those_of_other_clusters_left_out(accounting):
    levels = slurm_limits.list_limits("ann", qos="long", partition="short")
    assert [each.origin for each in levels] == [
        "QOS part",
        "QOS long",
        "ann in account lab",
        "account lab",
        "account root",
    ]
    part, long, own, account, _ = levels
    assert part.amounts == {"gres/gpu:a100 in all jobs": 1, "gres/gpu in all jobs": 6}
    assert long.amounts == {
        "minutes of walltime": 2160,
        "jobs running": 2,
        "jobs in the queue": 3,
        "gres/gpu per job": 2,
        "node per job": 2,
        "gres/gpu in all jobs": 4,
        "mem in all jobs": 512000,
    }
    assert own.amounts == {
        "minutes of walltime": 180,
        "jobs running": 7,
        "jobs in the queue": 20,
        "gres/gpu per job": 4,
    }
    assert account.amounts["jobs in the queue"] == 30


def test_the_first_level_that_sets_a_limit_counts(accounting):
    limits = combine_limits(slurm_limits.list_limits("ann", qos="long", partition="short"))
    assert limits == {
        "minutes of walltime": 2160,
        "jobs running": 2,
        "jobs in the queue": 3,
        "gres/gpu per job": 2,
        "node per job": 2,
        "gres/gpu:a100 in all jobs": 1,
        "gres/gpu in all jobs": 6,
        "mem in all jobs": 512000,
    }
    assert combine_limits([]) == {}


def test_without_limits_on_the_site_or_the_account_nothing_is_limited(accounting):
    assert combine_limits(slurm_limits.list_limits("ann", account="free")) == {}
    accounting.prints("scontrol", CONFIG.replace(",limits", ""), of="show config")
    assert slurm_limits.list_limits("ann", qos="long") == []


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("", {}),
        ("cpu=8,gres/gpu:a100=2,node=1", {"cpu": 8, "gres/gpu:a100": 2, "node": 1}),
        ("mem=500G", {"mem": 512000}),
        ("mem=1.50T,billing=3", {"mem": 1572864, "billing": 3}),
    ],
)
def test_amounts_are_parsed(text, amounts):
    assert slurm_queries.parse_resources(text) == amounts


@pytest.mark.parametrize(("allowed", "origin"), [("long", "QOS long"), ("long,part", "QOS normal"), ("", "QOS normal")])
def test_without_a_default_qos_the_only_one_or_normal_applies(accounting, allowed, origin):
    accounting.prints("sacctmgr", f"free|{allowed}\n", of="format=Account,QOS")
    assert slurm_limits.list_limits("ann", account="free")[0].origin == origin
