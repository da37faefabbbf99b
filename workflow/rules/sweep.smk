rule sweeps:
    "Run all sweeps."
    input:
        expand(
            "results/sweeps/{name}/{table}.csv",
            name=yard.config.sweeps,
            table=["trials", "strategies"],
        ),
    message:
        "all sweeps are complete"


rule sweep:
    "Run the pending trials of a sweep, packed onto the slots of one job."
    input:
        yard.dataset_of("sweeps"),
        yard.weights_of("sweeps"),
    output:
        "results/sweeps/{name}/trials.csv",
        "results/sweeps/{name}/timeline.csv",
        "results/sweeps/{name}/epochs.csv",
    log:
        "results/logs/sweep/{name}.log",
    benchmark:
        "results/benchmarks/sweep/{name}.tsv"
    wildcard_constraints:
        name=yard.sweep.names(nodes="one"),
    retries: yard.sweep.retries()
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *yard.config.env_modules,
    threads: yard.sweep.cpus
    resources:
        pending=yard.sweep.pending,
        gpu=yard.sweep.gpus,
        gpu_model=yard.sweep.gpu_model,
        nodes=yard.sweep.nodes,
        runtime=yard.sweep.minutes,
        mem_mb=yard.sweep.mem_mb,
        memory=yard.sweep.memory,
        plan=yard.sweep.summary,
        hardware=yard.sweep.hardware,
        slurm_extra=yard.sweep.slurm_extra,
    params:
        program=yard.program("sweep"),
        results=yard.sweep.digest,
    message:
        yard.message("{resources.plan}")
    shell:
        "{params.program} --sweep {wildcards.name} --log-file {log}"


# With `mpi`, the executor leaves `srun` to the command: for jobs on several nodes. The plan may need only one.
use rule sweep as sweep_on_nodes with:
    wildcard_constraints:
        name=yard.sweep.names(nodes="several"),
    resources:
        pending=yard.sweep.pending,
        runtime=yard.sweep.minutes,
        mem_mb=yard.sweep.mem_mb,
        memory=yard.sweep.memory,
        plan=yard.sweep.summary,
        hardware=yard.sweep.hardware,
        gpu=yard.sweep.gpus,
        gpu_model=yard.sweep.gpu_model,
        nodes=yard.sweep.nodes,
        mpi=yard.sweep.if_on_nodes("srun"),
        tasks=yard.sweep.if_on_nodes(yard.sweep.nodes),
        gres=yard.sweep.if_on_nodes(yard.sweep.gres),
        tasks_per_gpu=yard.sweep.if_on_nodes(0),
        slurm_extra=yard.sweep.slurm_extra,
