"""Ray Tune: a Ray cluster in one job."""

from peers.participants import Peer

RUN = "sbatch --nodes={nodes} job.sh"

PEERS = [
    Peer(
        name="ray-tune",
        title="Ray Tune in one job",
        folder="ray_tune",
        documentation=(
            "https://docs.ray.io/en/latest/cluster/vms/user-guides/community/slurm.html",
            "https://docs.ray.io/en/latest/tune/tutorials/tune-fault-tolerance.html",
        ),
        version="""python -c 'from importlib.metadata import version; print("ray", version("ray"))'""",
        programs=".tools/peers/bin",
        submit=(RUN,),
        resume=(RUN,),
        note="The longest first, by a grid search over the list; `reuse_actors=True`, since each trial starts a "
        "process otherwise; `max_failures=1`. After a kill, the same job calls `Tuner.restore`, which knows what Tune "
        "had saved. The job holds its GPUs for a while after the last trial: `ray symmetric-run` stops Ray on the head "
        "node only.",
    )
]
