"""The rules of the page, read from its source: text never becomes markup, nothing comes from elsewhere."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "serve" / "page"
FILES = sorted(PAGE.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MARKUP = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser"
    r"|\beval\(|new Function|setAttribute\(\"(?:style|on)"
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_text_can_become_markup_or_code(path: Path) -> None:
    assert not re.findall(MARKUP, path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    hosts = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w./-]+", path.read_text()))
    assert hosts <= {"http://www.w3.org/2000/svg"}, "a name space is all that may look like an address"


def test_the_strict_policy_finds_nothing_inline() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)


def test_every_name_that_a_script_looks_up_is_in_the_page() -> None:
    html = (PAGE / "index.html").read_text()
    wanted = {name for path in SCRIPTS for name in re.findall(r"\$\(\"([\w-]+)\"\)", path.read_text())}
    assert not {name for name in wanted if f'id="{name}"' not in html}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350
