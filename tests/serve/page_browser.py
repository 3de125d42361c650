"""Headless Chromium on the scripted server: the fixtures and the hands of the page's tests."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.page_server import Scene, serving

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the page's tests drive Chromium with playwright: pip install playwright"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUESTION = "Who was the older of the two men who walked on the Moon with Apollo 11?"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
PATIENCE = 15_000  # ms for one thing to appear


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("the page's tests need chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def address(scene: Scene) -> Iterator[str]:
    with serving(scene) as address:
        yield address


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    yield from opened(chromium, address, viewport=WIDE)


@pytest.fixture
def phone(chromium: Any, address: str) -> Iterator[Any]:
    yield from opened(chromium, address, viewport=PHONE, has_touch=True, is_mobile=True)


def opened(chromium: Any, address: str, **context_options: Any) -> Iterator[Any]:
    """A page whose every fault and foreign request fails the test."""
    context = chromium.new_context(**context_options)
    context.set_default_timeout(PATIENCE)
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda said: (
            faults.append(said.text) if said.type == "error" and "status of" not in said.text else None
        ),
    )
    page.on(
        "request",
        lambda asked: None if asked.url.startswith((address, "data:", "blob:")) else faults.append(asked.url),
    )
    page.goto(address)
    page.wait_for_selector("#ready:not(:empty)")
    yield page
    context.close()
    assert not faults, f"the console or the network of the page: {faults}"


def ask(page: Any, question: str, end: str = "done") -> None:
    page.fill("#question", question)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"body[data-state={end}]")


def lit(page: Any) -> list[str]:
    page.wait_for_selector("#panel mark")
    return page.locator("#panel mark").all_inner_texts()
