rule sweeps:
    "Run all sweeps."
    input:
        expand(
            "results/sweeps/{name}/{table}.csv",
            name=project.config.sweeps,
            table=["trials", "strategies"],
        ),
    message:
        "all sweeps are complete"


rule sweep:
    "Run the pending trials of a sweep, packed onto the slots of one job."
    input:
        project.dataset_of("sweeps"),
        project.weights_of("sweeps"),
    output:
        "results/sweeps/{name}/trials.csv",
        "results/sweeps/{name}/timeline.csv",
        "results/sweeps/{name}/epochs.csv",
    log:
        "results/logs/sweep/{name}.log",
    benchmark:
        "results/benchmarks/sweep/{name}.tsv"
    retries: project.sweep.retries()
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *project.config.env_modules,
    threads: project.sweep.cpus
    resources:
        **project.sweep.resources(),
    params:
        program=project.program("sweep"),
        results=project.sweep.digest,
    message:
        project.message("{resources.plan}")
    shell:
        "{params.program} --sweep {wildcards.name} --log-file {log}"
