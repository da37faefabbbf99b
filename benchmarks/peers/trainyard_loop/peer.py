"""Trainyard's own training loop, instead of a command."""

from peers.participants import Peer
from peers.trainyard.peer import RUN, VERSION

# Its trials are not processes that could write trials.log. Their times are those of its timeline.
LOG = """\
awk -F, 'NR == 1 {for (i = 1; i <= NF; i++) column[$i] = i; next}
{trial = $column["trial"]; if (!(trial in index_of)) index_of[trial] = ++trials
where = $column["node"] " " $column["gpu"] " " NR
print "start", index_of[trial], $column["start"], where
print $column["outcome"] == "finished" ? "end" : "crash", index_of[trial], $column["end"], where}' \
results/sweeps/bench/timeline.csv"""
WHY = "the work is not a training"

PEERS = [
    Peer(
        name="trainyard-loop",
        title="Trainyard, its own loop",
        folder="trainyard_loop",
        documentation=("../../docs/training.md",),
        version=VERSION,
        submit=(RUN,),
        resume=(RUN,),
        log=LOG,
        cannot=dict.fromkeys(("depth", "short", "tail", "trouble", "crowded"), WHY),
        note="The same trainings as `train:` of a sweep instead of a command, in processes that stay.",
    )
]
