"""Placeholders are found where a POSIX shell would see them, and quoted values are whole wherever that is allowed."""

import random
import shlex
import subprocess

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.config.user_programs import PLACEHOLDER, build_argv
from trainyard.utils.shell_syntax import ARITHMETIC, BACKTICKS, COMMENT, DOCUMENT, DOUBLE, ESCAPED, PLAIN, SINGLE, read

# A command line, and where each of its placeholders stands.
PLACES = {
    "run {a} --b={b} c{c}d": [PLAIN, PLAIN, PLAIN],
    "run '{a}' {b}": [SINGLE, PLAIN],
    'run "{a}" {b}': [DOUBLE, PLAIN],
    'run "x{a}y\\"{b}" {c}': [DOUBLE, DOUBLE, PLAIN],
    "run \\\"{a}\\\" {b}": [PLAIN, PLAIN],
    "run \\'{a} {b}": [PLAIN, PLAIN],
    "run \\{a}": [ESCAPED],
    "run \\\\{a}": [PLAIN],
    "run 'it'\"'\"'s' {a} '{b}'": [PLAIN, SINGLE],
    "run 'it'\"'{a}'\"'s' {b}": [DOUBLE, PLAIN],
    "run 'a\\' {a}": [PLAIN],
    'run "it\'s" {a}': [PLAIN],
    "run '\"' {a} '\"'": [PLAIN],
    "run ${HOME} ${x:-{a}} \"${x:-{b}}\" {c}": [PLAIN, DOUBLE, PLAIN],
    "run ${x#'}'{a}} {b}": [PLAIN, PLAIN],
    "run ${x:-{a} # ( <<E ;} '{b}'": [PLAIN, SINGLE],
    "run $(basename {a}) {b}": [PLAIN, PLAIN],
    'run "$(basename {a}) {b}" {c}': [PLAIN, DOUBLE, PLAIN],
    'run "$(basename "{a}")" {b}': [DOUBLE, PLAIN],
    "run $(echo ')' {a} '{b}')": [PLAIN, SINGLE],
    "run `basename {a}` {b}": [BACKTICKS, PLAIN],
    'run "`basename {a}`" {b}': [BACKTICKS, PLAIN],
    "run `echo \\`{a}\\`` {b}": [BACKTICKS, PLAIN],
    "run $(( {a} * (2 + {b}) )) {c}": [ARITHMETIC, ARITHMETIC, PLAIN],
    'run "$(( {a} ))" {b}': [ARITHMETIC, PLAIN],
    "run $(( $(wc {a}) )) {b}": [PLAIN, PLAIN],
    "run {a} # not {b}\nrun {c}": [PLAIN, COMMENT, PLAIN],
    "run {a}#{b}": [PLAIN, PLAIN],
    "run ${#x} {a}": [PLAIN],
    "run \\ #'{a}'": [SINGLE],
    "run # don't\nrun {a}": [PLAIN],
    "cat <<EOF {a}\nit's {b}\nEOF\nrun {c}": [PLAIN, DOCUMENT, PLAIN],
    "cat <<'EOF'\n{a}\nEOF\nrun '{b}'": [DOCUMENT, SINGLE],
    "cat <<-A <<B\n{a}\n\tA\n{b}\nB\nrun {c}": [DOCUMENT, DOCUMENT, PLAIN],
    "cat <<'E'{a}\nE{a}\nrun {b}": [DOCUMENT, DOCUMENT, PLAIN],
    "run $(cat <<EOF\n{a})\nEOF\n) {b}": [DOCUMENT, PLAIN],
    "run <<< {a} {b}": [PLAIN, PLAIN],
    "(cd x && run {a}) | tee '{b}'": [PLAIN, SINGLE],
    "case {a} in '{b}') run {c};; esac": [PLAIN, SINGLE, PLAIN],
    "run \\\n  {a} \\\n  {b}": [PLAIN, PLAIN],
    "run 'never closed {a}": [SINGLE],
    "run $$ $1 $ {a}": [PLAIN],
    "run $$('{a}": [SINGLE],
    "run $${x # {a}": [COMMENT],
}  # fmt: skip


@pytest.mark.parametrize("line", PLACES)
def test_placeholders_stand_where_a_shell_would_see_them(line):
    assert [where for _, where in read(line, PLACEHOLDER).placeholders] == PLACES[line]
    assert [name for name, _ in read(line, PLACEHOLDER).placeholders] == PLACEHOLDER.findall(line)


NASTY = "it's $(touch made) `touch made` \"$HOME\" \\ # ; & | > made ) } ' \n*"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_value_arrives_whole_wherever_it_may_stand(tmp_path, shell):
    lines = [
        line.replace("run", "printf '<%s>'") for line, places in PLACES.items()
        if set(places) == {PLAIN} and not line.startswith(("(", "case", "run {a}#", "run <<<", "run $((", "run ${x#"))
    ]  # fmt: skip
    assert len(lines) > 8
    for line in lines:
        expected = [name for name in PLACEHOLDER.findall(line) if "basename" not in line]
        words = build_argv(line, {name: f"{name}:{NASTY}" for name in "abc"}.__getitem__)
        done = subprocess.run(
            [shell, *words[1:]], cwd=tmp_path, text=True, capture_output=True, check=False, timeout=PATIENCE_SECONDS
        )
        assert all(f"{name}:{NASTY}" in done.stdout for name in expected), line
        assert list(tmp_path.iterdir()) == [], line


PARTS = ["{a}", "{a}", "'", '"', "\\", "`", "$(", "$((", "))", ")", "(", "}", "${x:-", "#", " #", " ", "\n", "x", "$",
         "<<E\n", "\nE\n", "<<-'E'", "|", ";", "&", "it", "=", "echo ", "$x"]  # fmt: skip


def test_nothing_in_a_value_is_executed_whatever_the_line_looks_like(tmp_path):
    """Lines of any parts, most of them nonsense, whose placeholders are said to stand in plain words."""
    generator, tried = random.Random(3), 0
    while tried < 200:
        line = "echo " + "".join(generator.choices(PARTS, k=generator.randint(3, 20)))
        if any(where != PLAIN for _, where in read(line, PLACEHOLDER).placeholders) or "{a}" not in line:
            continue
        tried += 1
        command = build_argv(line, lambda name: NASTY.replace("> made", "touch made"))
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
        assert list(tmp_path.iterdir()) == [], line


# A command line, and the first thing that makes it more than one simple command.
OPERATORS = {
    "run {a} --b 'x; y | z' \"(&)\" $(a; b | c) ${x:-;} `d & e` $((1 | 2))": "",
    "run {a} > out.txt 2>&1 < in >> more": "",
    "A=1 run {a}": "",
    "run \\\n  {a}\n": "",
    "run a\\;b \\| c#d": "",
    "run {a} | tee out": "|",
    "run {a} |& tee out": "|",
    "cd x && run {a}": "&",
    "run {a} &": "&",
    "run {a} || true": "|",
    "run {a}; run": ";",
    "run {a}\nrun": "a line break",
    "cat <<EOF\n{a}\nEOF": "a line break",
    "run {a} # as before": "a comment",
    "(run {a})": "(",
    "run {a} \\": "a backslash",
}


@pytest.mark.parametrize("line", OPERATORS)
def test_what_is_more_than_a_simple_command_is_found(line):
    assert next(iter(read(line, PLACEHOLDER).operators), "") == OPERATORS[line]


@pytest.mark.parametrize("line", [line for line, operator in OPERATORS.items() if not operator])
def test_what_is_added_to_a_simple_command_is_its_last_argument(tmp_path, line):
    (tmp_path / "in").touch()
    (tmp_path / "run").write_text('#!/bin/sh\nfor last in "$@"; do :; done; echo "$last" > last.txt\n')
    (tmp_path / "run").chmod(0o755)
    line = line.strip().replace("{a}", "1").replace("`d & e`", "`true`").replace("$(a; b | c)", "")
    subprocess.run(
        ["/bin/sh", "-c", f"{line} {shlex.quote('the last')}"], cwd=tmp_path, env={"PATH": f"{tmp_path}:/bin"}
    )
    assert (tmp_path / "last.txt").read_text() == "the last\n"
