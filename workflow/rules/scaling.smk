rule scaling:
    "Run all scaling studies."
    input:
        expand("results/scaling/{name}/scaling.csv", name=project.config.scaling),
    message:
        "all scaling studies are complete"


rule train:
    "Train at one scale of a study."
    input:
        project.dataset_of("scaling"),
        project.weights_of("scaling"),
        project.renewal(
            "results/scaling/{name}/{scale}/summary.json",
            project.train.digest,
            project.train.lacks_results,
        ),
    output:
        "results/scaling/{name}/{scale}/summary.json",
        "results/scaling/{name}/{scale}/history.csv",
    log:
        "results/logs/train/{name}-{scale}.log",
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *project.config.env_modules,
    threads: project.train.cpus
    resources:
        **project.train.resources(),
    params:
        program=project.program("train"),
        results=project.train.digest,
    message:
        project.message("{resources.plan}")
    shell:
        "{params.program} --scale {wildcards.scale} --study {wildcards.name} --log-file {log}"
