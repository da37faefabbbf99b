rule data:
    input:
        expand("results/data/{name}/meta.json", name=yard.config.datasets),


rule download:  # on this machine: compute nodes often have no internet access
    output:
        "results/data/{name}/download.json",
    log:
        "results/logs/download/{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    params:
        source=yard.source,
    message:
        "dataset {wildcards.name}: downloading"
    shell:
        'python "$SCRIPTS/download.py" --config "$CONFIG" --dataset {wildcards.name} --log-file {log}'


rule weights:  # as rule download, on this machine
    output:
        "results/weights/{model}-{weights}.json",
    log:
        "results/logs/weights/{model}-{weights}.log",
    wildcard_constraints:
        model=r"\w+",
        weights="[A-Z0-9_]+",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "weights {wildcards.weights} of {wildcards.model}: downloading"
    shell:
        'python "$SCRIPTS/weights.py" --config "$CONFIG" --model {wildcards.model} --weights {wildcards.weights} --log-file {log}'


rule stage:
    input:
        yard.download,
    output:
        "results/data/{name}/meta.json",
    log:
        "results/logs/stage/{name}.log",
    conda:
        "../../envs/trainyard.yaml"
    threads: yard.staging_cpus
    resources:
        mem_mb=yard.staging_mem_mb,
        memory=yard.staging_memory,
        hardware=yard.cpu_hardware,
    params:
        source=yard.source,
    message:
        yard.message("dataset {wildcards.name}: staging")
    shell:
        'python "$SCRIPTS/stage.py" --config "$CONFIG" --dataset {wildcards.name} --log-file {log}'
