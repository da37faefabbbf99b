"""Trainyard. The rules are in workflow/rules, their programs in scripts; config/README.md explains the config."""

import runpy
import sys
from pathlib import Path
from snakemake.utils import min_version

min_version("9.27")

home = workflow.current_basedir  # of this file, also if another workflow imports it
scripts = Path(str(home), "scripts")
if not scripts.exists():  # it is imported from a repository
    checkout = workflow.source_path("scripts/trainyard/cli/checkout.py")
    scripts = runpy.run_path(checkout)["check_out"](home)
sys.path.insert(0, str(scripts))
import trainyard.utils.quick_imports
from trainyard.cli.kept_outputs import keep_outputs_of_others
from trainyard.cli.snakefile import open_workflow, plain_errors

# The demo is the default only: Snakemake would merge it with the files of --configfile.
if not workflow.overwrite_configfiles:

    configfile: scripts.with_name("config") / "config.yaml"


report: "workflow/report/workflow.rst"


project = open_workflow(workflow, config)


onstart:
    with plain_errors():
        project.check(dry_run=False)
        project.begin()
    keep_outputs_of_others(workflow.dag)
    project.pass_on_interrupt(workflow)


onsuccess:
    project.print_summary(workflow, succeeded=True)


onerror:
    project.sweep.forget_ended_jobs()
    project.print_summary(workflow, succeeded=False)


wildcard_constraints:
    name=project.name_pattern,
    scale=r"\d+x\d+(/repeat-\d+)?",


include: "workflow/rules/data.smk"
include: "workflow/rules/sweep.smk"
include: "workflow/rules/scaling.smk"
include: "workflow/rules/report.smk"


rule all:
    "All results (the default)."
    default_target: True
    input:
        rules.data.input,
        rules.sweeps.input,
        rules.scaling.input,
        rules.tables.input,
        rules.plots.input,
        rules.overview.output,
    message:
        "all studies are complete"
