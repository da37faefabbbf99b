rule data:
    input:
        expand("results/data/{name}/meta.json", name=yard.config.datasets),


rule stage:
    output:
        "results/data/{name}/meta.json",
    log:
        "results/logs/stage/{name}.log",
    conda:
        "../../envs/trainyard.yaml"
    resources:
        hardware=yard.cpu_hardware,
    params:
        source=yard.source,
    message:
        yard.message("dataset {wildcards.name}: staging")
    shell:
        "python $SCRIPTS/stage.py --config $CONFIG --dataset {wildcards.name} --log-file {log}"
