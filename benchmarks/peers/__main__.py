"""Run the same work through Trainyard and through its alternatives on the four-host Slurm (as root).

    make bench-peers                          # all of it, then the tables and the picture of benchmarks/peers/README.md
    make bench-peers ARGS='--quick'           # the depth sweep and many short trials, small, once
    make bench-peers ARGS='--works depth --peers trainyard sbatch --repeats 1'
    make bench-peers ARGS='--list'

Each run appends one line to <out>/runs.jsonl; a run that has a line is not repeated. A participant that was over the
limit of a work is not measured again there. The folder of a run,
<out>/runs/<work>-<participant>-<repeat>, keeps the participant's files, trials.log and output.txt.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from slurm_cluster.cluster import Cluster
from slurm_cluster.prerequisites import SYSTEM_PATH, install_packages
from trainyard.utils.event_log import Event, EventLog

from peers.participants import Peer, participants
from peers.picture import draw
from peers.records import FILE, key_of, over_limit_before, read_runs
from peers.runner import ROOT, Run
from peers.tables import PAGE, participants_table, results, summary, write_page
from peers.works import Work, measured_works, works

QUICK = {"scale": 0.25, "short_trials": 200, "repeats": 1, "works": ["depth", "short"]}
FULL = {"scale": 1.0, "short_trials": 1000, "repeats": 3}


def main() -> int:
    """Run what is missing, and write the tables."""
    arguments = _arguments()
    every_work = works(scale=arguments.scale, short_trials=arguments.short_trials)
    every_peer = participants()
    chosen_works = [every_work[name] for name in arguments.works or every_work]
    chosen_peers = [every_peer[name] for name in arguments.peers or every_peer]
    if arguments.list:
        for peer in every_peer.values():
            print(f"{peer.name:20} {peer.title}")
        return 0
    if not arguments.table:
        _run_missing(arguments, chosen_works, _installed(chosen_peers))
    runs = read_runs(arguments.out)
    if not runs:
        print(f"no runs in {arguments.out / FILE}")
        return 1
    if arguments.quick or arguments.works or arguments.peers:
        print(*results(every_work, runs, every_peer), sep="\n")
    else:
        versions = {
            name: ", ".join(dict.fromkeys(run["version"] for run in runs if run["peer"] == name))
            for name in {run["peer"] for run in runs}
        }
        shown = measured_works(runs, short_trials=arguments.short_trials)
        found = results(shown, runs, every_peer)
        if draw(shown, runs, every_peer, PAGE.with_name("peers")):
            found = [
                "![Seconds from submission to the end of the last trial, by work and participant](peers.png)",
                "",
                *found,
            ]
        all_works = summary(shown, runs, every_peer)
        write_page({"participants": participants_table(every_peer, versions), "peers": all_works, "results": found})
        print(f"wrote {PAGE}")
    return 0


def _installed(peers: list[Peer]) -> list[Peer]:
    """These participants without those whose programs are not there; Debian's packages are installed."""
    missing = {peer.package for peer in peers if peer.package and not shutil.which(peer.package, path=SYSTEM_PATH)}
    if missing:
        install_packages(sorted(missing), needed_by="the comparison")
    for peer in peers:
        if not (ROOT / peer.programs).exists():
            print(f"left out: {peer.title}, as there is no {ROOT / peer.programs}; make bench-peers installs it")
    return [peer for peer in peers if (ROOT / peer.programs).exists()]


def _run_missing(arguments: argparse.Namespace, chosen_works: list[Work], chosen_peers: list[Peer]) -> None:
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    runs = read_runs(out)
    done = {key_of(run) for run in runs}
    # Repeats are the outer loop: slow changes of the machine affect all participants alike.
    wanted = [
        (work, peer, _key(work, peer, repeat))
        for repeat in range(1, arguments.repeats + 1)
        for work in chosen_works
        for peer in chosen_peers
        if work.name not in peer.cannot
    ]
    missing = [each for each in wanted if key_of(each[2]) not in done]
    print(f"{len(missing)} of {len(wanted)} runs are missing in {out / FILE}", flush=True)
    if not missing:
        return
    versions: dict[str, str] = {}
    with EventLog.opened(out / FILE) as log, Cluster(visible=[out]) as cluster:
        for number, (work, peer, key) in enumerate(missing, start=1):
            if over_limit_before(key, runs):
                print(
                    f"[{number}/{len(missing)}] {work.title}, {peer.title}: left out, as it was over its limit before"
                )
                continue
            folder = out / "runs" / f"{work.name}-{peer.name}-{key['repeat']}"
            run = Run(cluster, peer, work, key["repeat"], folder, arguments.patience)
            if peer.name not in versions:
                versions[peer.name] = run.version()
            result = {**key, **run.measure(), "version": versions[peer.name]}
            runs.append(log.append("run", durable=True, **result))
            print(f"[{number}/{len(missing)}] {_line(work, peer, result)}", flush=True)


def _key(work: Work, peer: Peer, repeat: int) -> Event:
    """What identifies a run among the lines of `runs.jsonl`."""
    return {"work": work.name, "peer": peer.name, "repeat": repeat, "scale": work.scale, "trials": len(work.seconds)}


def _line(work: Work, peer: Peer, result: dict[str, Any]) -> str:
    outcome = result["reason"] or f"{result['seconds']:.1f} s, makespan {result['over_bound']:.2f} times its bound"
    return f"{work.title}, {peer.title}, repeat {result['repeat']}: {outcome}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=works(scale=1, short_trials=1), help="default: all")
    parser.add_argument("--peers", nargs="+", choices=participants(), help="default: all")
    parser.add_argument("--repeats", type=int, help=f"runs of each kind (default: {FULL['repeats']})")
    parser.add_argument("--scale", type=float, help=f"factor of the sweep's durations (default: {FULL['scale']:g})")
    parser.add_argument("--short-trials", type=int, help=f"trials of `short` (default: {FULL['short_trials']})")
    parser.add_argument("--quick", action="store_true", help=f"other defaults: {QUICK}")
    parser.add_argument("--out", type=Path, default=ROOT / "results/bench-peers", help="default: results/bench-peers")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of the time limits, for slow machines")
    parser.add_argument("--table", action="store_true", help="run nothing; write tables and picture from the lines")
    parser.add_argument("--list", action="store_true", help="list the participants")
    arguments = parser.parse_args()
    for name, value in (QUICK if arguments.quick else FULL).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
