rule data:
    "Stage all datasets."
    input:
        expand("results/data/{name}/meta.json", name=project.config.datasets),
    message:
        "all datasets are staged"


rule download:  # on this machine: compute nodes often have no internet access
    "Download the files of a dataset."
    input:
        project.renewal("results/data/{name}/download.json", project.stage.digest),
    output:
        "results/data/{name}/download.json",
    log:
        "results/logs/download/{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *project.config.env_modules,
    resources:
        **project.here,
    params:
        program=project.program("download"),
        source=project.stage.digest,
    message:
        "dataset {wildcards.name}: downloading"
    shell:
        "{params.program} --dataset {wildcards.name} --log-file {log}"


rule weights:  # as rule download, on this machine
    "Download pretrained weights of torchvision."
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
    envmodules:
        *project.config.env_modules,
    resources:
        **project.here,
    params:
        program=project.program("weights"),
    message:
        "weights {wildcards.weights} of {wildcards.model}: downloading"
    shell:
        "{params.program} --model {wildcards.model} --weights {wildcards.weights} --log-file {log}"


rule stage:
    "Stage a dataset: its files become a few large ones."
    input:
        project.download,
        project.renewal("results/data/{name}/meta.json", project.stage.digest),
    output:
        "results/data/{name}/meta.json",
    log:
        "results/logs/stage/{name}.log",
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *project.config.env_modules,
    threads: project.stage.cpus
    resources:
        **project.stage.resources(),
    params:
        program=project.program("stage"),
        source=project.stage.digest,
    message:
        project.message("{resources.plan}")
    shell:
        "{params.program} --dataset {wildcards.name} --log-file {log}"
