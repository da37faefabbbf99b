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
    retries: yard.sweep.retries()
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *yard.config.env_modules,
    threads: yard.sweep.cpus
    resources:
        **yard.sweep.resources(),
    params:
        program=yard.program("sweep"),
        results=yard.sweep.digest,
    message:
        yard.message("{resources.plan}")
    shell:
        "{params.program} --sweep {wildcards.name} --log-file {log}"
