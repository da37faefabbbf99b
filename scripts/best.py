"""Print the answer of sweeps, as far as they have run: the best configuration, how sure that is, and what they used.

It is what `trainyard run` prints at its end. It writes nothing, and works while the sweeps run.
"""

import argparse

from trainyard.cli import command_line, json_output
from trainyard.cli.progress import describe_other_run
from trainyard.cli.sweep_answer import answer_as_json, describe_sweep
from trainyard.config.load import read_config
from trainyard.planning.history import read_state
from trainyard.results.answer import answer_sweep
from trainyard.utils.errors import UserError


def main(arguments: argparse.Namespace) -> int:
    """Print the answers; returns 1 if there is no best trial yet."""
    config = read_config(arguments.config)
    results = arguments.results
    names = arguments.sweeps or list(config.sweeps)
    if not names:
        raise UserError(f"{arguments.config} has no sweeps")
    for name in names:
        command_line.check_name(config, "sweeps", name)
    states = [read_state(config.sweeps[name], name, results) for name in names]
    if arguments.json:
        answers = [answer_as_json(state, answer_sweep(state), config.pricing) for state in states]
        json_output.print_json(answers=answers)
        return int(not any(answer["best"] for answer in answers))
    if other := describe_other_run(config, arguments.config, results):
        print(other)
    has_best = False
    for state in states:
        answer = answer_sweep(state)
        has_best |= answer.ranking.best_trial is not None
        print("\n".join(describe_sweep(state, answer, config.pricing)))
    return int(not has_best)


if __name__ == "__main__":
    parser = command_line.build_parser(str(__doc__), example="--config config/config.yaml depth")
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="name in `sweeps` of the config (default: all)")
    parser.add_argument(json_output.OPTION, action="store_true", help=json_output.HELP)
    command_line.run_program(main, parser.parse_args())
