"""Each placeholder gets the context that bash sees; outside of quotes, a quoted value stays one word."""

import random
import shlex
import subprocess

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.config.placeholders import PLACEHOLDER, build_argv
from trainyard.utils.shell_syntax import (
    ANSI_QUOTES,
    ARITHMETIC,
    BACKTICKS,
    COMMENT,
    DOUBLE_QUOTES,
    ESCAPED,
    HERE_DOCUMENT,
    SINGLE_QUOTES,
    UNQUOTED,
    parse_command,
)

# A command line, and the context of each of its placeholders.
CONTEXTS = {
    "run {a} --b={b} c{c}d": [UNQUOTED, UNQUOTED, UNQUOTED],
    "run '{a}' {b}": [SINGLE_QUOTES, UNQUOTED],
    'run "{a}" {b}': [DOUBLE_QUOTES, UNQUOTED],
    'run "x{a}y\\"{b}" {c}': [DOUBLE_QUOTES, DOUBLE_QUOTES, UNQUOTED],
    'run \\"{a}\\" {b}': [UNQUOTED, UNQUOTED],
    "run \\'{a} {b}": [UNQUOTED, UNQUOTED],
    "run \\{a}": [ESCAPED],
    "run \\\\{a}": [UNQUOTED],
    "run 'it'\"'\"'s' {a} '{b}'": [UNQUOTED, SINGLE_QUOTES],
    "run 'it'\"'{a}'\"'s' {b}": [DOUBLE_QUOTES, UNQUOTED],
    "run 'a\\' {a}": [UNQUOTED],
    'run "it\'s" {a}': [UNQUOTED],
    "run '\"' {a} '\"'": [UNQUOTED],
    'run ${HOME} ${x:-{a}} "${x:-{b}}" {c}': [UNQUOTED, DOUBLE_QUOTES, UNQUOTED],
    "run ${x#'}'{a}} {b}": [UNQUOTED, UNQUOTED],
    "run ${x:-{a} # ( <<E ;} '{b}'": [UNQUOTED, SINGLE_QUOTES],
    "run $(basename {a}) {b}": [UNQUOTED, UNQUOTED],
    'run "$(basename {a}) {b}" {c}': [UNQUOTED, DOUBLE_QUOTES, UNQUOTED],
    'run "$(basename "{a}")" {b}': [DOUBLE_QUOTES, UNQUOTED],
    "run $(echo ')' {a} '{b}')": [UNQUOTED, SINGLE_QUOTES],
    "run `basename {a}` {b}": [BACKTICKS, UNQUOTED],
    'run "`basename {a}`" {b}': [BACKTICKS, UNQUOTED],
    "run `echo \\`{a}\\`` {b}": [BACKTICKS, UNQUOTED],
    "run $(( {a} * (2 + {b}) )) {c}": [ARITHMETIC, ARITHMETIC, UNQUOTED],
    'run "$(( {a} ))" {b}': [ARITHMETIC, UNQUOTED],
    "run $(( $(wc {a}) )) {b}": [UNQUOTED, UNQUOTED],
    "run {a} # not {b}\nrun {c}": [UNQUOTED, COMMENT, UNQUOTED],
    "run {a}#{b}": [UNQUOTED, UNQUOTED],
    "run ${#x} {a}": [UNQUOTED],
    "run \\ #'{a}'": [SINGLE_QUOTES],
    "run # don't\nrun {a}": [UNQUOTED],
    "cat <<EOF {a}\nit's {b}\nEOF\nrun {c}": [UNQUOTED, HERE_DOCUMENT, UNQUOTED],
    "cat <<'EOF'\n{a}\nEOF\nrun '{b}'": [HERE_DOCUMENT, SINGLE_QUOTES],
    "cat <<-A <<B\n{a}\n\tA\n{b}\nB\nrun {c}": [HERE_DOCUMENT, HERE_DOCUMENT, UNQUOTED],
    "cat <<'E'{a}\nE{a}\nrun {b}": [HERE_DOCUMENT, HERE_DOCUMENT, UNQUOTED],
    "run $(cat <<EOF\n{a})\nEOF\n) {b}": [HERE_DOCUMENT, UNQUOTED],
    "run <<< {a} {b}": [UNQUOTED, UNQUOTED],
    "(cd x && run {a}) | tee '{b}'": [UNQUOTED, SINGLE_QUOTES],
    "case {a} in '{b}') run {c};; esac": [UNQUOTED, SINGLE_QUOTES, UNQUOTED],
    "run \\\n  {a} \\\n  {b}": [UNQUOTED, UNQUOTED],
    "run 'never closed {a}": [SINGLE_QUOTES],
    "run $$ $1 $ {a}": [UNQUOTED],
    "run $$('{a}": [SINGLE_QUOTES],
    "run $${x # {a}": [COMMENT],
    "run $'it\\'s {a}' {b}": [ANSI_QUOTES, UNQUOTED],
    'run "$\'{a}" {b}': [DOUBLE_QUOTES, UNQUOTED],
    "run $[ {a} + 1 ] {b}": [ARITHMETIC, UNQUOTED],
    "for ((i = 0; i < {a}; i++)); do run {b}; done": [ARITHMETIC, UNQUOTED],
    "run <(cat {a}) > >(tee {b}) '{c}'": [UNQUOTED, UNQUOTED, SINGLE_QUOTES],
}


@pytest.mark.parametrize("line", CONTEXTS)
def test_each_placeholder_has_the_context_that_a_shell_sees(line):
    assert [context for _, context in parse_command(line, PLACEHOLDER).placeholders] == CONTEXTS[line]
    assert [name for name, _ in parse_command(line, PLACEHOLDER).placeholders] == PLACEHOLDER.findall(line)


NASTY = "it's $(touch made) `touch made` \"$HOME\" \\ # ; & | > made ) } ' \n*"


def test_a_quoted_value_stays_one_word(tmp_path):
    lines = [
        line.replace("run", "printf '<%s>'")
        for line, contexts in CONTEXTS.items()
        if set(contexts) == {UNQUOTED}
        and not line.startswith(("(", "case", "run {a}#", "run <<<", "run $((", "run ${x#", "run <("))
    ]
    assert len(lines) > 8
    for line in lines:
        expected = [name for name in PLACEHOLDER.findall(line) if "basename" not in line]
        words = build_argv(line, {name: f"{name}:{NASTY}" for name in "abc"})
        done = subprocess.run(
            words, cwd=tmp_path, text=True, capture_output=True, check=False, timeout=PATIENCE_SECONDS
        )
        assert all(f"{name}:{NASTY}" in done.stdout for name in expected), line
        assert list(tmp_path.iterdir()) == [], line


PARTS = ["{a}", "{a}", "'", '"', "\\", "`", "$(", "$((", "))", ")", "(", "}", "${x:-", "#", " #", " ", "\n", "x", "$",
         "<<E\n", "\nE\n", "<<-'E'", "((", "$'", "$[", "]", "<(", "|", ";", "&", "it", "=", "echo ", "$x"]  # fmt: skip


def test_no_part_of_a_value_is_executed_in_any_line(tmp_path):
    """Random lines, most of them nonsense, in which the parser finds every placeholder unquoted."""
    generator, tried = random.Random(3), 0
    while tried < 200:
        line = "echo " + "".join(generator.choices(PARTS, k=generator.randint(3, 20)))
        if (
            any(context != UNQUOTED for _, context in parse_command(line, PLACEHOLDER).placeholders)
            or "{a}" not in line
        ):
            continue
        tried += 1
        command = build_argv(line, dict.fromkeys("abc", NASTY.replace("> made", "touch made")))
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
        assert list(tmp_path.iterdir()) == [], line


# A command line, and the first operator in it.
OPERATORS = {
    "run {a} --b 'x; y | z' \"(&)\" $(a; b | c) ${x:-;} `d & e` $((1 | 2))": "",
    "run {a} > out.txt 2>&1 < in >> more": "",
    "A=1 run {a}": "",
    "run {a} &> log": "",
    "run \\\n  {a}\n": "",
    "run a\\;b \\| c#d": "",
    "run {a} | tee out": "|",
    "run {a} |& tee out": "|",
    "cd x && run {a}": "&&",
    "run {a} &": "&",
    "run {a} || true": "||",
    "run {a}; run": ";",
    "run {a}\nrun": "a line break",
    "cat <<EOF\n{a}\nEOF": "a line break",
    "run {a} # as before": "a comment",
    "(run {a})": "(",
    "((x = {a}))": "(",
    "run {a} \\": "a backslash",
}


@pytest.mark.parametrize("line", OPERATORS)
def test_operators_are_found(line):
    assert next(iter(parse_command(line, PLACEHOLDER).operators), "") == OPERATORS[line]


@pytest.mark.parametrize("line", [line for line, operator in OPERATORS.items() if not operator])
def test_text_appended_to_a_simple_command_is_its_last_argument(tmp_path, line):
    (tmp_path / "in").touch()
    (tmp_path / "run").write_text('#!/bin/sh\nfor last in "$@"; do :; done; echo "$last" > last.txt\n')
    (tmp_path / "run").chmod(0o755)
    line = line.strip().replace("{a}", "1").replace("`d & e`", "`true`").replace("$(a; b | c)", "")
    subprocess.run(["bash", "-c", f"{line} {shlex.quote('the last')}"], cwd=tmp_path, env={"PATH": f"{tmp_path}:/bin"})
    assert (tmp_path / "last.txt").read_text() == "the last\n"
