rule trees:
    "Fit the models of all tree studies."
    input:
        expand("results/trees/{name}/trees.csv", name=project.config.trees),
    message:
        "all tree models are fitted"


rule fit_trees:
    "Fit the models of a tree study."
    input:
        project.dataset_of("trees"),
        project.renewal(
            "results/trees/{name}/trees.csv",
            project.fit_trees.digest,
            project.fit_trees.lacks_results,
        ),
    output:
        "results/trees/{name}/trees.csv",
        "results/trees/{name}/importances.csv",
    log:
        "results/logs/trees/{name}.log",
    benchmark:
        "results/benchmarks/trees/{name}.tsv"
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *project.config.env_modules,
    threads: project.fit_trees.cpus
    resources:
        **project.fit_trees.resources(),
    params:
        program=project.program("fit_trees"),
        study=project.fit_trees.digest,
    message:
        project.message("{resources.plan}")
    shell:
        "{params.program} --study {wildcards.name} --log-file {log}"
