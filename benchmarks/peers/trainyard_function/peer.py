"""Trainyard with a Python function instead of a command, as for trials that are shorter than the start of a process."""

from peers.participants import Peer
from peers.trainyard.peer import CONFIG, RUN, VERSION

PEERS = [
    Peer(
        name="trainyard-function",
        title="Trainyard, a function",
        folder="trainyard_function",
        documentation=("../../docs/your-script.md#a-function",),
        version=VERSION,
        submit=(CONFIG, RUN),
        resume=(RUN,),
        note="The same, with a Python function, which is called in processes that stay.",
    )
]
