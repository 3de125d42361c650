"""The page in Chromium: hostile text, what the browser keeps, hands and eyes, and its pieces."""

# ruff: noqa: F811 - pytest finds fixtures by name

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.serve.page_browser import QUESTION, WIDE, address, ask, chromium, lit, opened, page, phone, scene  # noqa: F401
from tests.serve.page_server import Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


# --- documents are text


def test_markup_in_a_document_an_answer_or_a_title_stays_text(page: Any) -> None:
    ask(page, "hostile " + QUESTION)
    assert page.inner_text("#answer").startswith("<b>Buzz</b>")
    page.locator(".cite").first.hover()
    assert lit(page) == ["<script>document.title='owned'</script> too."]
    assert (
        "<img src=x onerror=" in page.inner_text("#panel .page")
        and page.inner_text("#panel-title") == "<b>Not bold</b>"
    )
    assert page.locator("#panel img, #panel script, #panel b").count() == 0
    assert "owned" not in page.title()


# --- what the browser keeps


def test_history_brings_an_answer_back_without_asking_again(page: Any, scene: Scene) -> None:
    ask(page, QUESTION)
    page.reload()
    page.click("#open-history")
    page.locator("#past .entry").first.click()
    page.wait_for_selector("body[data-state=done]")
    assert page.locator(".cite").count() == 3 and len(scene.asked) == 1
    page.click("#open-history")
    page.click("#forget")
    assert "Nothing asked yet" in page.inner_text("#past")


def test_a_saved_trace_is_what_sproutrag_trace_reads_and_opens_again(page: Any, tmp_path: Path) -> None:
    ask(page, QUESTION)
    with page.expect_download() as download:
        page.click("#save")
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    assert json.loads(saved.read_text())["trace"]["root"]["children"][0]["id"] == "0.1"
    page.reload()
    page.set_input_files("#file", saved)
    page.wait_for_selector("body[data-state=done]")
    assert page.locator("#rows .row").count() == 6
    saved.write_text('{"question": "no trace"}')
    page.set_input_files("#file", saved)
    page.wait_for_selector("#notice:has-text('This file is no trace')")


# --- hands and eyes


def test_the_keyboard_alone_asks_reads_and_comes_back(page: Any) -> None:
    page.locator("body").press("/")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-state=done]")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('cite')"):
            break
    assert lit(page) == ["Neil Armstrong and Buzz Aldrin walked on the Moon"]
    page.keyboard.press("Escape")
    assert (
        page.evaluate("document.activeElement.dataset.cites") == "1"
        and page.locator("#panel mark").count() == 0
    )
    page.locator(".row").first.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.inner_text("#panel-title") == "When was Neil Armstrong born?"


def test_nothing_runs_over_the_edge_of_a_phone(phone: Any) -> None:
    def overflow() -> int:
        return phone.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert overflow() <= 0
    ask(phone, "partial " + QUESTION + " " + "w" * 300)
    assert overflow() <= 0
    phone.locator(".cite").first.tap()
    assert lit(phone) == ["Neil Armstrong and Buzz Aldrin walked on the Moon"]
    phone.locator("#tab-tree").tap()
    phone.wait_for_selector(".canvas .leaf")
    assert (
        overflow() <= 0
        and phone.evaluate("(b => b.scrollWidth - b.clientWidth)(document.querySelector('#panel-body'))") <= 0
    )
    phone.locator("#close").tap()
    assert not phone.is_visible("#panel")


def axe_source() -> str:
    if os.environ.get("AXE_CORE"):
        return Path(os.environ["AXE_CORE"]).read_text()
    found = find_spec("axe_playwright_python")
    if not found or not found.origin:
        pytest.skip("no axe-core: pip install axe-playwright-python, or AXE_CORE=path of axe.min.js")
    return (Path(found.origin).parent / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(chromium: Any, address: str, scheme: str) -> None:
    axe = axe_source()
    for shown in opened(chromium, address, viewport=WIDE, color_scheme=scheme):
        assert not grave(shown, axe), "the page before a question"
        ask(shown, "partial " + QUESTION)
        shown.locator(".cite").first.click()
        lit(shown)
        assert not grave(shown, axe), "an answer beside its document"
        shown.click("#tab-tree")
        shown.wait_for_selector(".canvas .leaf")
        assert not grave(shown, axe), "the sprout tree"
        ask(shown, "error", end="failed")
        shown.click("#open-history")
        assert not grave(shown, axe), "an error, under the history"


def grave(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)
    violations = page.evaluate("axe.run().then(found => found.violations)")
    return [
        f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]


# --- what the page is built of


def test_events_are_whole_whatever_the_pieces(page: Any) -> None:
    told = (
        ': hi\r\n\r\nevent: node\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
        "event: done\ndata:2\n\ndata: x\r\rdata: never ended\n"
    )
    read = """([told, size]) => import('/page/wire.js').then(({ eventReader }) => {
        const read = eventReader(), events = [];
        for (let at = 0; at < told.length; at += size) events.push(...read(told.slice(at, at + size)));
        return events.map(event => [event.name, event.data]);
    })"""
    for size in (1, 2, 3, 7, 1000):
        events = page.evaluate(read, [told, size])
        assert events == [["node", '{"a":\n1}'], ["done", "2"], ["message", "x"]], f"pieces of {size}"


def test_code_points_of_the_server_become_places_in_javascript(page: Any) -> None:
    text = "a\U0001f315b\U0001f469\U0001f3fd\u200d\U0001f680 c"
    cut = """([text, points]) => import('/page/paper.js').then(
        ({ ruler }) => points.map(point => text.slice(0, ruler(text)(point))))"""
    assert page.evaluate(cut, [text, list(range(len(text) + 3))]) == [text[:n] for n in range(len(text) + 3)]
