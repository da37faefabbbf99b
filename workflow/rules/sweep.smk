rule sweeps:
    input:
        expand(
            "results/sweeps/{name}/{table}.csv",
            name=yard.config.sweeps,
            table=["trials", "strategies"],
        ),


rule sweep:
    input:
        yard.dataset_of("sweeps"),
    output:
        "results/sweeps/{name}/trials.csv",
        "results/sweeps/{name}/timeline.csv",
        "results/sweeps/{name}/epochs.csv",
    log:
        "results/logs/sweep/{name}.log",
    wildcard_constraints:
        name=yard.sweeps_on(nodes="one"),
    retries: yard.sweep_retries()
    conda:
        "../../envs/trainyard.yaml"
    threads: yard.sweep_cpus
    resources:
        pending=yard.pending,
        gpu=yard.sweep_gpus,
        gpu_model=yard.sweep_gpu_model,
        nodes=yard.sweep_nodes,
        runtime=yard.sweep_minutes,
        plan=yard.sweep_summary,
        hardware=yard.sweep_hardware,
    params:
        results=yard.sweep_digest,
    message:
        yard.message("{resources.plan}")
    shell:
        "python $SCRIPTS/sweep.py --config $CONFIG --sweep {wildcards.name} --log-file {log}"


# As for trainings: a Slurm job of several nodes is told by `mpi` to leave the sruns to us. The plan may ask for one.
use rule sweep as sweep_on_nodes with:
    wildcard_constraints:
        name=yard.sweeps_on(nodes="several"),
    resources:
        pending=yard.pending,
        runtime=yard.sweep_minutes,
        plan=yard.sweep_summary,
        hardware=yard.sweep_hardware,
        gpu=yard.sweep_gpus,
        gpu_model=yard.sweep_gpu_model,
        nodes=yard.sweep_nodes,
        mpi=yard.sweep_on_nodes("srun"),
        tasks=yard.sweep_on_nodes(yard.sweep_nodes),
        gres=yard.sweep_on_nodes(yard.sweep_gres),
        tasks_per_gpu=yard.sweep_on_nodes(0),
        # a dead node costs the trials on it, not the job
        slurm_extra=yard.sweep_on_nodes("--ntasks-per-node=1 --no-kill"),
