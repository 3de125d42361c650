"""The page in real headless Chromium against a scripted server; each test is named after what a person would see."""

import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.serve.page_server import CREW, DOCUMENTS, MOON, Scene, citations_of, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
sync_api = pytest.importorskip("playwright.sync_api", reason="the page's tests drive Chromium with playwright: pip install playwright")
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
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" and "status of" not in said.text else None)
    page.on("request", lambda asked: None if asked.url.startswith((address, "data:", "blob:")) else faults.append(asked.url))
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


# --- ask, stream, cite


def test_asking_shows_the_answer_its_sources_and_the_tree(page: Any) -> None:
    ask(page, QUESTION)
    assert page.inner_text("#answer").startswith("Buzz Aldrin, who was born in January 1930.")
    assert page.locator(".cite").all_inner_texts() == ["1", "2", "3"]
    assert page.locator("#sources li").count() == 3
    rows = page.locator("#rows .row")
    assert rows.count() == 6 and rows.nth(5).get_attribute("data-id") == "0.5"
    told = page.inner_text("#rows")
    assert "together with 0.3" in told and "reuses 0.1" in told and "lateral · wave 2" in told
    assert page.inner_text("#counts") == "6 of 6 questions settled"
    assert page.locator("#edges .lane").count() == 1 and page.locator("#edges .reuse").count() == 1


def test_the_tree_grows_while_the_question_is_open(page: Any, scene: Scene) -> None:
    scene.pause = 0.05
    page.fill("#question", QUESTION)
    page.click("#send")
    page.wait_for_selector(".row[data-state=planning], .row[data-state=retrieving]")
    page.wait_for_selector("#edges .edge", state="attached")
    assert page.is_visible("#cancel") and not page.is_visible("#send")
    page.wait_for_selector("body[data-state=done]")
    assert page.is_visible("#send") and not page.is_visible("#cancel")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_pointing_at_a_citation_lights_exactly_its_sentence_also_after_emoji(page: Any, number: int) -> None:
    ask(page, QUESTION)
    page.locator(".cite").nth(number - 1).hover()
    cited = citations_of(QUESTION)[number - 1]
    assert lit(page) == [cited["quote"]]
    assert page.locator("#panel .page").inner_text().strip() == DOCUMENTS[cited["doc_id"]][1].strip()


def test_moving_from_one_citation_to_the_next_leaves_one_sentence_lit(page: Any) -> None:
    ask(page, QUESTION)
    for number in (1, 2, 0, 2):
        page.locator(".cite").nth(number).hover()
    page.wait_for_selector("#panel-title:text-is('The crew of Apollo 11')")
    assert lit(page) == ["Neil Armstrong was born on 5 August 1930"]


def test_a_question_of_the_tree_shows_its_evidence(page: Any) -> None:
    ask(page, QUESTION)
    page.locator(".row").nth(2).click()
    assert "5 August 1930" in page.inner_text("#panel-body")
    page.locator("#panel .passage .doc").first.click()
    assert lit(page) == ["Neil Armstrong was born on 5 August 1930"]


def test_search_only_finds_passages_and_lights_them(page: Any, scene: Scene) -> None:
    page.get_by_label("Search only").check()
    ask(page, "moon")
    assert page.locator("#results > li").count() == 3 and not scene.asked
    page.locator("#results > li").first.hover()
    assert lit(page) == ["Neil Armstrong and Buzz Aldrin walked on the Moon"]
    ask(page, "nothing")
    assert "Nothing in the documents matches" in page.inner_text("#results-facts")


# --- the sprout tree


def test_a_document_shows_its_sprout_tree_with_the_beams_path(page: Any) -> None:
    ask(page, QUESTION)
    page.locator(".cite").first.click()
    page.click("#tab-tree")
    page.wait_for_selector(".canvas .leaf.found")
    assert page.locator(".canvas .dot-kept").count() == 3 and page.locator(".canvas .dot-visited").count() == 3
    assert page.locator(".canvas path.kept").get_attribute("d")
    page.locator(".canvas .leaf").last.hover()
    assert page.inner_text(".told-strip b").startswith("Leaf")
    page.locator(".canvas").press("ArrowLeft")
    assert page.inner_text(".told-strip b").startswith("Node")
    page.locator(".canvas").press("Enter")
    assert "The ship in orbit was called Columbia." in " ".join(lit(page)) or len(lit(page)) > 1


def test_two_thousand_nodes_and_two_thousand_questions_stay_usable(page: Any) -> None:
    page.evaluate("window.slowest = 0; new PerformanceObserver(all => all.getEntries().forEach(one => "
                  "slowest = Math.max(slowest, one.duration))).observe({ type: 'longtask' })")  # fmt: skip
    ask(page, "crowd " + QUESTION)
    assert page.locator("#rows .row").count() == 2000
    page.locator(".row").nth(1).click()
    page.evaluate("import('/page/reader.js').then(reader => reader.openDocument({ id: 'long.txt', query: 'many', tab: 'tree' }))")
    page.wait_for_selector(".canvas .leaf")
    assert page.locator(".canvas .leaf").count() < 120, "only the rows in view are written"
    page.evaluate("document.querySelector('#panel-body').scrollTop = 1e6")
    page.wait_for_selector(".canvas .leaf:has-text('Sentence 999 ')")
    assert page.evaluate("window.slowest") < 3000


# --- ends that are not good


def test_cancelling_stops_the_work_and_keeps_what_arrived(page: Any, scene: Scene) -> None:
    page.fill("#question", "hold " + QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer:not(:empty)")
    page.click("#cancel")
    page.wait_for_selector("body[data-state=cancelled]")
    assert scene.left.wait(5), "the server was not told that the client has gone"
    assert "Cancelled" in page.inner_text("#notice") and page.inner_text("#answer").startswith("Buzz")
    assert "stopped before it was answered" in page.inner_text("#rows")


def test_an_error_in_the_stream_says_what_and_what_next(page: Any) -> None:
    ask(page, "error " + QUESTION, end="failed")
    told = page.inner_text("#notice")
    assert "The model went away" in told and "connection reset" in told and "Ask again; search still works." in told and "r-9" in told
    assert not page.is_visible("#answer-box")


def test_a_refusal_shows_the_servers_words(page: Any) -> None:
    ask(page, "refuse", end="failed")
    assert "Too many questions at once" in page.inner_text("#notice") and "Wait for one to end." in page.inner_text("#notice")


def test_a_stream_without_its_end_is_shown_as_cut(page: Any) -> None:
    ask(page, "cut " + QUESTION, end="cut")
    assert "ended before the answer did" in page.inner_text("#notice")
    assert page.inner_text("#answer").startswith("Buzz Aldrin") and page.locator(".cite").count() == 0
    page.click("#open-history")
    assert "Nothing asked yet" in page.inner_text("#past")


def test_a_server_that_is_gone_is_named(chromium: Any, scene: Scene) -> None:
    context = chromium.new_context()
    with serving(scene) as address:
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#ready:not(:empty)")
    ask(page, QUESTION, end="failed")
    assert "The server does not answer" in page.inner_text("#notice") and "sproutrag serve" in page.inner_text("#notice")
    context.close()


def test_a_partial_answer_names_what_stayed_open(page: Any) -> None:
    ask(page, "partial " + QUESTION)
    assert "Partial" in page.inner_text("#flags") and "the reply was not JSON" in page.inner_text("#flags")
    assert "the limit of 6 calls was reached" in page.inner_text("#open")
    assert page.locator(".row[data-state=failed]").count() == 1 and page.locator(".row[data-state=open]").count() == 1


def test_an_empty_index_says_how_to_fill_it(page: Any, scene: Scene) -> None:
    scene.documents = 0
    page.reload()
    page.wait_for_selector("#empty:not([hidden])")
    assert "sproutrag index SOURCE --db DIR" in page.inner_text("#empty")
    scene.documents = 4
    page.wait_for_selector("#empty", state="hidden")


def test_while_the_model_loads_search_works_already(page: Any, scene: Scene) -> None:
    scene.model_ready = False
    page.reload()
    page.wait_for_selector("#loading:not([hidden])")
    ask(page, QUESTION, end="failed")
    page.get_by_role("button", name="Search instead").click()
    page.wait_for_selector("#results > li")
    scene.model_ready = True
    page.wait_for_selector("#loading", state="hidden")


def test_a_wrong_key_asks_for_one_and_the_right_one_opens(page: Any, scene: Scene) -> None:
    scene.key = "s3cret"
    page.reload()
    page.get_by_role("button", name="Enter a key").click()
    page.fill("#key", "s3cret")
    page.keyboard.press("Enter")
    page.wait_for_selector("#ready:has-text('documents')")
    ask(page, QUESTION)
    assert page.evaluate("sessionStorage.getItem('sproutrag.key')") == '"s3cret"'
    assert "s3cret" not in page.evaluate("JSON.stringify(localStorage)")


# --- documents are text


def test_markup_in_a_document_an_answer_or_a_title_stays_text(page: Any) -> None:
    ask(page, "hostile " + QUESTION)
    assert page.inner_text("#answer").startswith("<b>Buzz</b>")
    page.locator(".cite").first.hover()
    assert lit(page) == ["<script>document.title='owned'</script> too."]
    assert "<img src=x onerror=" in page.inner_text("#panel .page") and page.inner_text("#panel-title") == "<b>Not bold</b>"
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
    assert page.evaluate("document.activeElement.dataset.cites") == "1" and page.locator("#panel mark").count() == 0
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
    assert overflow() <= 0 and phone.evaluate("(b => b.scrollWidth - b.clientWidth)(document.querySelector('#panel-body'))") <= 0
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
    for page in opened(chromium, address, viewport=WIDE, color_scheme=scheme):
        assert not grave(page, axe), "the page before a question"
        ask(page, "partial " + QUESTION)
        page.locator(".cite").first.click()
        lit(page)
        assert not grave(page, axe), "an answer beside its document"
        page.click("#tab-tree")
        page.wait_for_selector(".canvas .leaf")
        assert not grave(page, axe), "the sprout tree"
        ask(page, "error", end="failed")
        page.click("#open-history")
        assert not grave(page, axe), "an error, under the history"


def grave(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)
    violations = page.evaluate("axe.run().then(found => found.violations)")
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in violations if one["impact"] in ("serious", "critical")]


def test_the_scripted_documents_cut_where_the_tests_think() -> None:
    assert "🌕" in MOON[: MOON.index("Neil")] and "🚀" in MOON and CREW.isascii()
