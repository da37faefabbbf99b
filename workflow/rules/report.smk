rule tables:
    input:
        rules.scaling.input,
        expand("results/tables/sweeps/{name}.html", name=yard.config.sweeps),
        expand("results/tables/scaling/{name}.html", name=yard.config.scaling),
        expand("results/tables/trees/{name}.html", name=yard.config.trees),


rule plots:
    input:
        expand("results/plots/data/{name}/samples.svg", name=yard.pictured()),
        expand(
            "results/plots/sweeps/{name}/{plot}.svg",
            name=yard.config.sweeps,
            plot=["gantt", "metric", "loss"],
        ),
        expand(
            "results/plots/scaling/{name}/{plot}.svg",
            name=yard.config.scaling,
            plot=["speedup", "loss"],
        ),
        expand("results/plots/trees/{name}/scores.svg", name=yard.config.trees),


rule sweep_tables:
    input:
        rules.sweep.output,
    output:
        "results/sweeps/{name}/strategies.csv",
        "results/sweeps/{name}/jobs.csv",
        report(
            "results/tables/sweeps/{name}.html",
            category="Sweeps",
            subcategory="{name}",
            labels={"study": "{name}", "content": "table of trials"},
            caption="../report/trials.rst",
        ),
    log:
        "results/logs/tables/sweeps-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    shell:
        "python $SCRIPTS/tables.py --config $CONFIG --kind sweeps --name {wildcards.name} --log-file {log}"


rule trees_page:
    input:
        "results/trees/{name}/trees.csv",
    output:
        report(
            "results/tables/trees/{name}.html",
            category="Tree models",
            subcategory="{name}",
            labels={"study": "{name}", "content": "table"},
            caption="../report/trees.rst",
        ),
    log:
        "results/logs/tables/trees-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    shell:
        "python $SCRIPTS/tables.py --config $CONFIG --kind trees --name {wildcards.name} --log-file {log}"


rule plot_data:
    input:
        rules.stage.output,
    output:
        report(
            "results/plots/data/{name}/samples.svg",
            category="Data",
            subcategory="{name}",
            labels={"dataset": "{name}", "content": "samples"},
            caption="../report/samples.rst",
        ),
        report(
            "results/plots/data/{name}/classes.svg",
            category="Data",
            subcategory="{name}",
            labels={"dataset": "{name}", "content": "class balance"},
            caption="../report/classes.rst",
        ),
        multiext("results/plots/data/{name}/", "samples.png", "classes.png"),
    log:
        "results/logs/plots/data-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "dataset {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind data --name {wildcards.name} --log-file {log}"


rule plot_sweep:
    input:
        rules.sweep.output,
    output:
        report(
            "results/plots/sweeps/{name}/gantt.svg",
            category="Sweeps",
            subcategory="{name}",
            labels={"study": "{name}", "content": "slots over time"},
            caption="../report/gantt.rst",
        ),
        report(
            "results/plots/sweeps/{name}/metric.svg",
            category="Sweeps",
            subcategory="{name}",
            labels={"study": "{name}", "content": "accuracy against the varied key"},
            caption="../report/metric.rst",
        ),
        report(
            "results/plots/sweeps/{name}/loss.svg",
            category="Sweeps",
            subcategory="{name}",
            labels={"study": "{name}", "content": "loss curves"},
            caption="../report/sweep-loss.rst",
        ),
        multiext("results/plots/sweeps/{name}/", "gantt.png", "metric.png", "loss.png"),
    log:
        "results/logs/plots/sweeps-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "sweep {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind sweeps --name {wildcards.name} --log-file {log}"


rule plot_scaling:
    input:
        rules.scaling_table.output,
    output:
        report(
            "results/plots/scaling/{name}/speedup.svg",
            category="Scaling",
            subcategory="{name}",
            labels={"study": "{name}", "content": "speedup"},
            caption="../report/speedup.rst",
        ),
        report(
            "results/plots/scaling/{name}/loss.svg",
            category="Scaling",
            subcategory="{name}",
            labels={"study": "{name}", "content": "loss curves"},
            caption="../report/scaling-loss.rst",
        ),
        multiext("results/plots/scaling/{name}/", "speedup.png", "loss.png"),
    log:
        "results/logs/plots/scaling-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "scaling {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind scaling --name {wildcards.name} --log-file {log}"


rule plot_trees:
    input:
        rules.fit_trees.output,
    output:
        report(
            "results/plots/trees/{name}/scores.svg",
            category="Tree models",
            subcategory="{name}",
            labels={"study": "{name}", "content": "scores"},
            caption="../report/trees-scores.rst",
        ),
        "results/plots/trees/{name}/scores.png",
    log:
        "results/logs/plots/trees-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "trees {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind trees --name {wildcards.name} --log-file {log}"
