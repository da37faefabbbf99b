"""The commands of a user that prepare the nodes of a job, and those that follow its last trial."""

import logging
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from trainyard.cluster import host
from trainyard.config.placeholders import SHELL
from trainyard.config.user_programs import GRACE_SECONDS, ProgramOptions
from trainyard.programs.output import OutputReader
from trainyard.programs.runner import POLL_SECONDS
from trainyard.programs.user_environment import find_interpreter, parse_environment, program_environment
from trainyard.utils.environment_variables import Variables
from trainyard.utils.errors import UserError
from trainyard.utils.guard import ABRUPT_SECONDS
from trainyard.utils.guarded_process import GuardedProcess, ProcessGuard
from trainyard.utils.text import describe_exit

# Variables that are different in each shell, and the GPUs of a trial, which only its slot knows.
_NOT_PASSED: Final = ("_", "PWD", "OLDPWD", "SHLVL", "CUDA_VISIBLE_DEVICES")
# Before and after the commands of `setup`, in a bash whose $0 is a folder. It then lives as long as the job, and so do
# the processes that they have started.
_NODE: Final = '"$0/$SLURMD_NODENAME'
_SETUP: Final = (
    f'env -0 > {_NODE}.before"\n',
    f'\nexport -p > {_NODE}.exports"\nenv -0 > {_NODE}.new"\nmv {_NODE}.new" {_NODE}.after"\nexec sleep infinity',
)
_TEARDOWN: Final = f'! test -e {_NODE}.exports" || . {_NODE}.exports"\n'
log = logging.getLogger(__name__)


@contextmanager
def prepared_nodes(
    study: ProgramOptions, output: Path, *, nodes: int = 1, srun: Sequence[str] = ()
) -> Iterator[dict[str, Variables]]:
    """Run `setup` before the block and `teardown` after it, on each node; yields the changed variables, by node.

    What `setup` starts in the background ends after the block, or with this process. With several nodes, `srun` is the
    beginning of the command that starts a task on each. `output` is kept, and that of `teardown` beside it.

    Raises:
        UserError: `setup` failed.
    """
    if not (study.setup or study.teardown):
        yield {}
        return
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    environment = {"SLURMD_NODENAME": host.node_name(), **program_environment(find_interpreter(study))}
    with tempfile.TemporaryDirectory(prefix=".setup-", dir=output.parent) as folder, closing(ProcessGuard()) as guard:

        def start(commands: str, reader: OutputReader) -> GuardedProcess:
            return guard.start(
                [*srun, SHELL, "-e", "-o", "pipefail", "-c", commands, folder],
                cwd=str(Path.cwd()),
                environment=environment,
                grace_seconds=ABRUPT_SECONDS,
                on_output=reader.take,
            )

        log.info("`setup` runs; its output is in %s", output)
        reader = OutputReader(output)
        process = start((study.setup or "").join(_SETUP), reader)
        ready = list[Path]()
        is_running = True
        try:
            while is_running and len(ready) < nodes:
                is_running = reader.read_lines(POLL_SECONDS)[1]
                ready = sorted(Path(folder).glob("*.after"))
            if len(ready) < nodes:
                error = f"`setup` failed, and nothing was started: {describe_exit(process.wait())}"
                tail = reader.tail()
                raise UserError(f"{error}; the end of {output}:\n{tail}" if tail else f"{error}; it printed nothing")
            reader.stop_reading()  # what runs in the background would wait once the queue is full
            yield {host.short_name(path.stem): _new_variables(path) for path in ready}
        finally:
            reader.stop_reading()
            if len(ready) < nodes:
                process.end(0.0)
            if study.teardown:
                output = output.with_name(output.name.replace("setup", "teardown"))
                reader = OutputReader(output)
                reader.stop_reading()
                ending = start(_TEARDOWN + study.teardown, reader)
                with suppress(subprocess.TimeoutExpired):
                    ending.wait(GRACE_SECONDS)
                if code := ending.end(0.0):
                    log.warning("`teardown` failed: %s; see %s", describe_exit(code), output)
            process.end(ABRUPT_SECONDS)


def _new_variables(after: Path) -> Variables:
    """The variables that are not as they were before the commands; None for those that are unset."""
    before = parse_environment(after.with_suffix(".before").read_bytes())
    now = parse_environment(after.read_bytes())
    changed = {name for name, _ in before.items() ^ now.items()}
    return {name: now.get(name) for name in changed.difference(_NOT_PASSED)}
