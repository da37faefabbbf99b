rule data:
    input:
        expand("results/data/{name}/meta.json", name=yard.config.datasets),


rule stage:
    output:
        "results/data/{name}/meta.json",
    params:
        source=yard.source,
    conda:
        "../../envs/trainyard.yaml"
    log:
        "results/logs/stage/{name}.log",
    message:
        "dataset {wildcards.name}: staging"
    shell:
        "python scripts/stage.py --config $CONFIG --dataset {wildcards.name} --log-file {log}"
