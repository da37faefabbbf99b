rule sweeps:
    input:
        expand("results/sweeps/{name}/trials.csv", name=yard.config.sweeps),


rule sweep:
    input:
        yard.dataset_of("sweeps"),
    output:
        "results/sweeps/{name}/trials.csv",
        "results/sweeps/{name}/timeline.csv",
        "results/sweeps/{name}/epochs.csv",
    log:
        "results/logs/sweep/{name}.log",
    conda:
        "../../envs/trainyard.yaml"
    threads: yard.sweep_cpus
    resources:
        pending=yard.pending,
        gpu=yard.sweep_gpus,
        nodes=yard.sweep_nodes,
        runtime=yard.sweep_minutes,
        plan=yard.sweep_summary,
    params:
        results=yard.sweep_digest,
    message:
        "{resources.plan}"
    shell:
        "python $SCRIPTS/sweep.py --config $CONFIG --sweep {wildcards.name} --log-file {log}"
