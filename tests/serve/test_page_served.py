"""The page as the real server gives it, in real Chromium: key, question, citation, document, sprout tree."""

# ruff: noqa: F811 - pytest finds fixtures by name

import os
from pathlib import Path
from typing import Any

import pytest

from tests.serve.endpoint import GOLD, KEYS
from tests.serve.page_browser import WIDE, chromium, lit, opened  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def page(chromium: Any, server: str) -> Any:
    yield from opened(chromium, f"{server}/", viewport=WIDE)


def shot(page: Any, name: str) -> None:
    """Kept for a person to look at where SPROUTRAG_SHOTS names a folder."""
    if folder := os.environ.get("SPROUTRAG_SHOTS"):
        page.screenshot(path=Path(folder, f"{name}.png"))


def test_a_person_with_a_key_asks_reads_the_source_and_sees_its_tree(page: Any) -> None:
    page.click("#open-key")
    page.fill("#key", KEYS["all"])
    page.keyboard.press("Enter")
    shot(page, "start")
    page.fill("#question", GOLD[0].question)
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-state=done]")
    shot(page, "answer")
    for answer in GOLD[0].answers:
        assert answer in page.inner_text("#answer-box")
    assert page.locator("#rows .row").count() > 2
    assert page.locator("#sources li").count() >= 1
    page.locator("#sources li a, #sources li button").first.click()
    assert lit(page)
    shot(page, "source")
    page.click("#tab-tree")
    page.wait_for_selector("#panel svg path.edge", state="attached")
    shot(page, "tree")


def test_cancelling_ends_the_question_on_the_server_too(page: Any) -> None:
    page.click("#open-key")
    page.fill("#key", KEYS["all"])
    page.keyboard.press("Enter")
    page.fill("#question", GOLD[1].question)
    page.keyboard.press("Enter")
    page.click("#cancel")
    page.wait_for_selector("body[data-state=cancelled], body[data-state=idle], body[data-state=stopped]")
    shot(page, "cancelled")
