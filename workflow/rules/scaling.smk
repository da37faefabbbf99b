rule scaling:
    "Run all scaling studies."
    input:
        expand("results/scaling/{name}/scaling.csv", name=yard.config.scaling),
    message:
        "all scaling studies are complete"


rule train:
    "Train at one scale of a study."
    input:
        yard.dataset_of("scaling"),
        yard.weights_of("scaling"),
    output:
        "results/scaling/{name}/{scale}/summary.json",
        "results/scaling/{name}/{scale}/history.csv",
    log:
        "results/logs/train/{name}-{scale}.log",
    benchmark:
        "results/benchmarks/train/{name}-{scale}.tsv"
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *yard.config.env_modules,
    threads: yard.train.cpus
    resources:
        **yard.train.resources(),
    params:
        program=yard.program("train"),
        results=yard.train.digest,
    message:
        yard.message("{resources.plan}")
    shell:
        "{params.program} --scale {wildcards.scale} --study {wildcards.name} --log-file {log}"
