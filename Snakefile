"""Trainyard. The rules are in workflow/rules, their programs in scripts; config/README.md explains the config."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir, "scripts")))
from trainyard.config.load import compose
from trainyard.cli import slurm_executor
from trainyard.cli.workflow import Workflow

# The demo is the default only: Snakemake would merge it with the files of --configfile.
if not workflow.overwrite_configfiles:

    configfile: Path(workflow.basedir, "config/config.yaml")


report: "workflow/report/workflow.rst"


yard = Workflow(
    compose(workflow.configfiles, workflow.config_settings.config),
    results=Path("results"),
    default_resources=workflow.resource_settings.default_resources,
    executor=lambda: workflow.executor_settings,
    set_resources=workflow.resource_settings.overwrite_resources,
    config_files=workflow.configfiles,
)
slurm_executor.register()
shell.prefix(yard.shell_prefix(workflow.deployment_settings.deployment_method))


onstart:
    yard.follow_jobs()
    yard.check_user_code()
    yard.sweep.check()
    yard.write_config()


onsuccess:
    yard.print_summary(workflow, succeeded=True)


onerror:
    yard.print_summary(workflow, succeeded=False)


wildcard_constraints:
    name=yard.name_pattern,
    scale=r"\d+x\d+(/repeat-\d+)?",


include: "workflow/rules/data.smk"
include: "workflow/rules/sweep.smk"
include: "workflow/rules/scaling.smk"
include: "workflow/rules/trees.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.data.input,
        rules.sweeps.input,
        rules.scaling.input,
        rules.trees.input,
        rules.tables.input,
        rules.plots.input,
        yard.event_files(wanted_only=True),
