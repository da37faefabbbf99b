"""The documents hold: commands run, output and messages are real, configs are valid, links lead somewhere.

What is checked of a fenced block depends on its language and on the HTML comment in the line above it:

    ```sh       its commands are run in a folder with finished results; with <!-- not run: REASON --> only parsed
    ```text     lines that the sh block before it prints; with <!-- message --> messages in the code, where `...` stands
                for values; with <!-- example: REASON --> neither
    ```yaml     a config, or a section `train`, which is validated; README.md's with the name of a file is saved there
    ```python   is compiled
    ```snakemake  is a Snakefile, which test_imported.py runs
    ```         a walk through the code: each numbered line begins with `file:function`, which exists
"""

import ast
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from options import anchor
from project import INSTALLED, ROOT, Project
from trainyard.config.config import Config
from trainyard.config.load import check_config
from trainyard.config.parser import read_file
from trainyard.config.train import Train

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "config/README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md", ROOT / "benchmarks/peers/README.md"]
QUICKSTART = "docs/quickstart.md"  # test_quickstart.py runs its commands, one after another
COMMENT = r"<!-- (?P<comment>(?:(?!-->).)*) -->"
BLOCK = re.compile(rf"(?:^ *{COMMENT}\n)?^ *```(?P<language>\w*) ?(?P<file>.*?)\n(?P<text>.*?)^ *```$", re.M | re.S)
NAMES = {"<sweep>": "lr", "<study>": "ranks", "<scale>": "1x1", "<dataset>": "tiny", "<job>": "123"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    comment: str | None
    text: str
    file: str  # in which a reader saves it

    @property
    def kind(self) -> str:
        """What is checked of it."""
        remark = re.match(r"(not run|example): \S|message$", self.comment or "")
        word = remark[0].partition(":")[0] if remark else ""
        known = {("sh", ""): "run", ("sh", "not run"): "parse", ("text", ""): "output", ("text", "message"): "message",
                 ("text", "example"): "example", ("yaml", ""): "config", ("python", ""): "compile",
                 ("snakemake", ""): "snakefile", ("", ""): "walk"}  # fmt: skip
        return known.get((self.language, word), "unknown")


def blocks_of(page: Path) -> list[Block]:
    content, name = page.read_text(), page.relative_to(ROOT).as_posix()
    return [
        Block(name, content.count("\n", 0, each.start("text")), *each.group("language", "comment", "text", "file"))
        for each in BLOCK.finditer(content)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of_kind(kind: str) -> pytest.MarkDecorator:
    """Parametrize a test with the blocks of a kind."""
    chosen = [each for each in BLOCKS if each.kind == kind]
    if kind in ("run", "output"):
        chosen = [each for each in chosen if each.page != QUICKSTART]
    return pytest.mark.parametrize("block", chosen, ids=lambda each: f"{each.page}:{each.line}")


def test_it_is_clear_of_every_block_how_it_is_checked():
    unknown = [f"{each.page}:{each.line}" for each in BLOCKS if each.kind == "unknown"]
    assert not unknown, f"give these blocks a language and a comment, as {Path(__file__).name} explains: {unknown}"
    assert QUICKSTART in {each.page for each in BLOCKS}


@pytest.fixture(scope="module")
def shell(done, tmp_path_factory):
    """Runs commands in a folder like a clone, with a finished run of `my.yaml`; returns their output."""
    clone = Project(tmp_path_factory.mktemp("clone"))
    for name in ("Snakefile", "workflow", "scripts", "profiles", "config", ".venv"):
        (clone.folder / name).symlink_to(ROOT / name)
    for name in ("results", ".snakemake"):
        shutil.copytree(done.folder / name, clone.folder / name)
    shutil.copy(done.folder / "prices.csv", clone.folder)
    shutil.copy(done.config_file, clone.folder / "my.yaml")
    shutil.copy(ROOT / "examples/train_argparse.py", clone.folder / "train.py")  # the script that a reader has
    for block in BLOCKS:
        if block.file and block.page == "README.md":
            (clone.folder / block.file).write_text(block.text)

    @cache
    def run(commands: str) -> str:
        for name, value in NAMES.items():
            commands = commands.replace(name, value)
        ended = clone.run("bash", "-euo", "pipefail", "-c", INSTALLED + commands, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    return run


@pytest.mark.slow
@of_kind("run")
def test_commands_run(shell, block):
    shell(block.text)


@of_kind("parse")
def test_commands_that_are_not_run_are_commands(block):
    text = re.sub(r"<[a-z ]+>", "x", block.text)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    for word in re.findall(r"(?:^|\s)((?:scripts|tools|tests|benchmarks|examples|profiles)/[\w./-]+)", text):
        assert (ROOT / word).exists(), word
    for target in re.findall(r"^\s*make ([a-z-]+)", text, re.M):
        assert re.search(rf"^[a-z -]*\b{target}\b[a-z -]*:", (ROOT / "Makefile").read_text(), re.M), target


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tests_that_are_named_exist(page):
    for file, names in re.findall(r"pytest [^`\n]*?(tests/[\w/.]+)(?: -k '?([\w ]+))?", page.read_text()):
        known = "\n".join(path.read_text() for path in (ROOT / file).parent.glob("*.py"))
        assert (ROOT / file).exists(), file
        assert all(name in known for name in names.split(" or ")), names


@pytest.mark.slow
@of_kind("output")
def test_output_is_what_the_commands_before_it_print(shell, block):
    before = [each for each in BLOCKS if each.page == block.page and each.line < block.line and each.language == "sh"]
    assert before, "no commands before it"
    assert before[-1].kind == "run", "the commands before it are not run: say <!-- example: REASON -->"
    output = shell(before[-1].text)
    for line in block.text.splitlines():
        for part in line.split("..."):
            assert part.strip() in output


@cache
def strings_in_the_code() -> str:
    """Every string constant of the programs and the library, one after another."""
    nodes = [node for path in (ROOT / "scripts").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return "\0".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@of_kind("message")
def test_messages_are_those_of_the_code(block):
    for line in block.text.splitlines():
        for part in line.split("..."):
            assert part.strip() in strings_in_the_code()


@of_kind("walk")
def test_walks_lead_through_functions_that_exist(block):
    hops = re.findall(r"^ *\d+  ([\w/]+\.py):(\w+)", block.text, re.M)
    assert hops
    for path, name in hops:
        code = (ROOT / "scripts/trainyard" / path).read_text()
        assert re.search(rf"^ *(def|class) {name}\b", code, re.M), f"{path}:{name}"


@of_kind("config")
def test_configs_are_valid(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text("{optimizer: {lr: 1}, layers: [{width: 8}], amp: true, seed: 1}")
    (tmp_path / "jobs.txt").write_text("python train.py")
    (tmp_path / "block.yaml").write_text(block.text)
    raw = read_file(tmp_path / "block.yaml")
    if raw.keys() == {"train"}:
        Train.model_validate(raw["train"])
        return
    assert raw.keys() <= Config.model_fields.keys()
    check_config(completed(raw))


def completed(raw: dict) -> dict:
    """The config with what examples leave out: the dataset of a study, the trials of a sweep, the scales."""
    studies = [study for section in ("sweeps", "scaling") for study in raw.get(section, {}).values()]
    for study in studies:
        if not {"command", "commands", "function", "script"} & study.keys():
            study.setdefault("dataset", "digits")
    for study in raw.get("sweeps", {}).values():
        if not {"command", "commands", "function", "trees", "grid", "trials", "sample", "search"} & study.keys():
            study["grid"] = {"lr": [0.1]}
    for study in raw.get("scaling", {}).values():
        study.setdefault("scales", ["1x1"])
    used = {study["dataset"] for study in studies if "dataset" in study}
    return raw | {"datasets": {name: {"source": "digits"} for name in used} | raw.get("datasets", {})}


@of_kind("compile")
def test_python_compiles(block):
    ast.parse(block.text)


def anchors_of(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.M)}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        if "://" not in target:
            file, _, name = target.partition("#")
            path = Path(os.path.normpath(page.parent / file)) if file else page
            assert path.exists(), target
            assert not name or name in anchors_of(path), target
