"""`{args}` in a command: all arguments, as the parsers of argparse and Hydra read them."""

import argparse
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.config.load import ConfigError, check_config
from trainyard.config.placeholders import Switch, build_argv
from trainyard.config.trials import expand
from trainyard.utils.errors import UserError

ARGS = {"lr": 1e-05, "batch_size": 64, "tag": "it's a b", "sizes": [32, 16], "amp": True, "ema": False, "seed": None,
        "net": {"depth": 18, "act": "relu"}}  # fmt: skip
LINES = {
    "x {args}": ["x", "--lr", "1e-05", "--batch_size", "64", "--tag", "it's a b", "--sizes", "32", "16", "--amp",
                 "--net.depth", "18", "--net.act", "relu"],
    "x {args:dashes} y": ["x", "--lr", "1e-05", "--batch-size", "64", "--tag", "it's a b", "--sizes", "32", "16",
                          "--amp", "--net.depth", "18", "--net.act", "relu", "y"],
    "x {args:hydra}": ["x", "lr=1.0e-05", "batch_size=64", "tag='it\\'s a b'", "sizes=[32,16]", "amp=true", "ema=false",
                       "seed=null", "net.depth=18", "net.act=relu"],
    "x -l {lr} -d {net.depth} {args} > {tag}{sizes}{batch_size}":
        ["x", "-l", "1e-05", "-d", "18", "--amp", "--net.act", "relu", ">", "it's a b[32, 16]64"],
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_all_arguments_that_the_command_does_not_name_are_added_in_its_style(line):
    def switch_of(flag):
        return Switch((flag,), ()) if flag == "--ema" else None

    assert build_argv(line, ARGS, in_shell=False, switch_of=switch_of) == LINES[line]
    words = line.split()
    if ">" not in words:
        assert build_argv(words, ARGS, switch_of=switch_of) == LINES[line]
    assert build_argv(line, ARGS, switch_of=switch_of)[:-1] == ["bash", "-o", "pipefail", "-c"]


def test_false_is_written_as_the_program_takes_it_or_refused():
    pair, value = Switch(("--amp",), ("--no-amp",)), Switch(("--amp", "true"), ("--amp", "false"))
    for switch, on in ((pair, True), (pair, False), (value, True), (value, False)):
        words = switch.on if on else switch.off
        assert build_argv(["{args}"], {"amp": on}, switch_of={"--amp": switch}.get) == list(words)
    for name in ("args", "args:dashes"):
        with pytest.raises(
            UserError, match=r"it is not certain how --use.amp is turned off: write `null` for false if"
        ):
            build_argv([f"{{{name}}}"], {"use_amp": False})
    assert build_argv(["{args}"], {"use_amp": None}) == []
    assert build_argv(["{args:hydra}"], {"amp": False}) == ["amp=false"]
    assert build_argv(["--amp={amp}"], {"amp": False}) == ["--amp=false"]


VALUES = st.one_of(
    st.booleans(), st.none(), st.integers(), st.floats(), st.text(st.characters(codec="ascii", exclude_characters="$"))
)


@given(st.recursive(VALUES, lambda inner: st.lists(inner, min_size=1, max_size=3)))
def test_hydra_reads_the_values_that_the_config_has(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (word,) = build_argv(["{args:hydra}"], {"key": value})
    override = OverridesParser.create().parse_override(word)
    found = override.value()
    assert override.key_or_group == "key"
    assert is_same(value, found), word


def is_same(value, found):
    if isinstance(value, list):
        return len(value) == len(found) and all(map(is_same, value, found))
    if isinstance(value, float) and math.isnan(value):
        return math.isnan(found)
    text = getattr(found, "text", found)  # of a quoted string
    return text == value and type(text) is type(value)


@given(st.floats(allow_nan=False), st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1))
def test_argparse_reads_values_that_look_like_options(number, text):
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=float)
    parser.add_argument("--text")
    command = ["{args}"]
    found = parser.parse_args(build_argv(command, {"number": number, "text": text}))
    assert (found.number, found.text) == (number, text)


def own(**fields):
    return check_config({"sweeps": {"own": fields}}).sweeps["own"]


def test_an_argument_called_args_port_or_gpus_keeps_its_place():
    made = own(command="x {args} {port} {gpus}", args={"args": "a", "gpus": 3}, grid={"port": [1]})
    trial = expand(made).trials[0]
    assert build_argv(made.command, trial.spec.args, {"port": 2, "gpus": 2})[-1] == "x a 1 3"
    with pytest.raises(ConfigError, match=r"b is not in the command: write \{b\} where it belongs, or \{args\}"):
        own(command="x {args}", args={"args": "a", "b": 1})


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("x --all={args}", r"\{args\} is several words: write no other text beside it"),
        (["x", "{args:hydra} y"], r"\{args:hydra\} is several words"),
        ("x {args:json}", r"there is no \{args:json\}; known: \{args\}, \{args:dashes\}, \{args:hydra\}"),
        ("x '{args}'", r"\{args\} is in single quotes"),
        ("x $(({args}))", r"\{args\} is in \$\(\(...\)\), but .* is not a number"),
    ],
)
def test_all_arguments_in_a_place_for_one_are_an_error(command, message):
    with pytest.raises(ConfigError, match=message):
        own(command=command, grid={"n": [1, 2]})
    if command != "x $(({args}))":
        with pytest.raises(ConfigError, match=message):
            check_config({"scaling": {"own": {"script": command, "args": {"n": 1}, "scales": ["1x1"]}}})


def test_arithmetic_on_arguments_and_the_size_of_a_trial_is_a_value():
    command = "x --all {64 * (gpus + 1)} {64*gpus} --lr {net.lr * 0.5} {bs // 3} {args}"
    made = own(command=command, args={"net": {"lr": 0.1}, "bs": 8, "n": 1})
    line = build_argv(made.command, expand(made).trials[0].spec.args, {"gpus": 4})[-1]
    assert line == "x --all 320 256 --lr 0.05 2 --n 1"
    large = own(command="x {seed + 1} {seed * 3} {seed // 2} {2 ** 64 + seed}", args={"seed": 2**53 + 1})
    line = build_argv(large.command, expand(large).trials[0].spec.args)[-1]
    assert line == f"x {2**53 + 2} {3 * (2**53 + 1)} {2**52} {2**64 + 2**53 + 1}"
    literal = "awk '{ s += $1 * 2 } END {print s}' {1 + 2} {a-b} ${HOME} " + '{"a": 1}'
    assert build_argv(own(command=literal).command, {})[-1] == literal


@pytest.mark.parametrize(
    ("arithmetic", "message"),
    [
        ("{2 * m}", r"the (command|script) has \{m\}, which is neither an argument nor predefined"),
        ("{2 * (n}", r"\{2 \* \(n\} has no value: '\(' was never closed"),
        ("{n + text}", r"\{n \+ text\} has no value: text is 'a', not a number"),
        ("{n / 0}", r"\{n / 0\} has no value: float division by zero"),
        ("{n + 9 ** 9 ** 9}", r"\{n \+ 9 \*\* 9 \*\* 9\} has no value: .*Numerical result out of range"),
        ("{n * args}", r"\{n \* args\} has no value: args is \['--text', 'a'\], not a number"),
    ],
)
def test_arithmetic_without_a_value_is_an_error(arithmetic, message):
    arguments = {"args": {"n": 1, "text": "a"}}
    words = f"x {arithmetic} {{n}}" + " {text}" * ("args" not in arithmetic)
    with pytest.raises(ConfigError, match=message):
        own(command=words, **arguments)
    with pytest.raises(ConfigError, match=message):
        check_config({"scaling": {"own": {"script": words, **arguments, "scales": ["1x1"]}}})


def test_all_arguments_may_stand_in_a_pipe_or_a_subshell():
    made = own(command="(x {args})|y $(z {args})", grid={"n": [1]})
    line = build_argv(made.command, {"n": 1})[-1]
    assert line == "(x --n 1)|y $(z --n 1)"
