"""What `make site` makes of the repository's documents: a hook of MkDocs.

Pages, and the files that they link to, keep their paths: so the same links hold in the repository and on the site.
"""

import re
from os.path import normpath
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from options import ROOT, anchor

LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
ADDED = ("docs/iframe-worker.js", "docs/site.css")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name headings as GitHub does; nothing is loaded from another host."""
    config.mdx_configs["toc"]["slugify"] = lambda heading, separator: anchor(heading)
    config.extra["polyfills"] = [ADDED[0]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages of the navigation and what they link to, in place of all files of a folder."""
    for file in [each for each in files if each.src_dir == config.docs_dir]:
        files.remove(file)
    for name in ADDED:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in pages_of(config.nav):
        targets = [target for _, target, _ in LINK.findall((ROOT / page).read_text()) if "://" not in target]
        linked = sorted({normpath(Path(page).parent / target) for target in targets})
        for uri in [page, *(each for each in linked if (ROOT / each).is_file())]:
            if uri not in files.src_uris:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / uri)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Show the name of a block's file above it, and the name of a folder, which the site does not have, as text."""
    markdown = re.sub(r"^( *```\w+) (\S+)$", r'\1 title="\2"', markdown, flags=re.M)
    folder = ROOT.joinpath(page.file.src_uri).parent
    return LINK.sub(lambda link: f"`{link[1].strip('`')}`" if (folder / link[2]).is_dir() else link[0], markdown)


def pages_of(nav: Any) -> list[str]:
    """The paths in a navigation, in their order."""
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(each)]
