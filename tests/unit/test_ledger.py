"""What makes the code hard to hold in one's head may only become less."""

import json

import ledger


def test_no_figure_of_the_ledger_rises():
    """After a change that lowers one, run `python tools/ledger.py --write`; one that must raise one says why."""
    allowed = json.loads(ledger.LEDGER.read_text())
    counted = ledger.count()
    assert counted.keys() == allowed.keys()
    risen = {name: f"{count}, was {allowed[name]}" for name, count in counted.items() if count > allowed[name]}
    assert risen == {}


def test_the_figures_count_what_they_say(tmp_path, monkeypatch):
    package = tmp_path / "scripts/trainyard/packing"
    package.mkdir(parents=True)
    (package / "module.py").write_text(
        "from trainyard.config.sweep import TrainSweep\n"
        "WAIT_SECONDS: Final = 1.0\n"
        "def run(sweep):  # a comment is no token\n"
        "    if isinstance(sweep, TrainSweep):\n"
        "        Thread(target=run).start()\n"
        "    match sweep:\n"
        "        case CommandSweep():\n"
        "            pass\n"
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/options.md").write_text("# Options\n\n| key | type |\n| --- | --- |\n| `slots` | section |\n")
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "CODE", tmp_path / "scripts")
    assert ledger.count() == {
        "arrows between packages": 1,
        "branches on kinds": 2,
        "constants of seconds": 1,
        "options": 1,
        "starts of threads": 1,
        "tokens": 46,
        "tokens in packing": 46,
    }
