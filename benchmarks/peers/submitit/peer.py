"""submitit: an array whose tasks call a function."""

from peers.participants import Peer

RUN = "python sweep.py {workers}"

PEERS = [
    Peer(
        name="submitit",
        title="submitit's array",
        documentation=(
            "https://github.com/facebookincubator/submitit/blob/main/docs/examples.md",
            "https://github.com/facebookincubator/submitit/blob/main/submitit/helpers.py",
        ),
        version="""python -c 'from importlib.metadata import version; print("submitit", version("submitit"))'""",
        programs=".tools/peers/bin",
        submit=(RUN,),
        resume=(RUN,),
        files_for={"short": "chunks", "tail": "chunks"},
        note="The longest first. Nothing retries a function that failed, and nothing skips what had finished: the "
        "user's own line does. Many short trials are in chunks, one per slot, by its `FunctionSequence`.",
    )
]
