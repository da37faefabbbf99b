rule sweeps:
    "Run all sweeps."
    input:
        expand(
            "results/sweeps/{name}/{table}.csv",
            name=project.config.sweeps,
            table=["trials", *project.derived_tables["sweeps"]],
        ),
    message:
        "all sweeps are complete"


rule sweep:
    "Run the pending trials of a sweep, packed onto the slots of one job."
    input:
        project.dataset_of("sweeps"),
        project.weights_of("sweeps"),
        project.renewal(
            "results/sweeps/{name}/trials.csv",
            project.sweep.digest,
            project.sweep.lacks_results,
        ),
    output:
        "results/sweeps/{name}/trials.csv",
        "results/sweeps/{name}/timeline.csv",
        "results/sweeps/{name}/epochs.csv",
    log:
        "results/logs/sweep/{name}.log",
    wildcard_constraints:
        name=project.sweep.names(several_jobs=False),
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


rule sweep_job:
    "Run trials of a sweep in one of its jobs, each of which takes the next pending one."
    input:
        project.dataset_of("sweeps"),
        project.weights_of("sweeps"),
    output:
        temp(touch("results/sweeps/{name}/jobs/{job}.done")),
    log:
        "results/logs/sweep/{name}_{job}.log",
    wildcard_constraints:
        name=project.sweep.names(several_jobs=True),
        job=r"\d+",
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
        "{params.program} --sweep {wildcards.name} --order-job {wildcards.job} --log-file {log}"


rule sweep_tables:
    "Write the tables of a sweep whose jobs have ended."
    input:
        project.job_marks,
        project.renewal(
            "results/sweeps/{name}/trials.csv",
            project.sweep.digest,
            project.sweep.lacks_results,
        ),
    output:
        "results/sweeps/{name}/trials.csv",
        "results/sweeps/{name}/timeline.csv",
        "results/sweeps/{name}/epochs.csv",
    log:
        "results/logs/sweep/{name}.log",
    wildcard_constraints:
        name=project.sweep.names(several_jobs=True),
    retries: 0
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *project.config.env_modules,
    resources:
        **project.here,
    params:
        program=project.program("sweep"),
        results=project.sweep.digest,
    message:
        "sweep {wildcards.name}: tables of all jobs"
    shell:
        "{params.program} --sweep {wildcards.name} --tables --log-file {log}"
