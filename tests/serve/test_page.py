"""The page in real headless Chromium; each test is named after what a person would see."""

# ruff: noqa: F811 - pytest finds fixtures by name

from typing import Any

import pytest

from tests.serve.page_browser import QUESTION, address, ask, chromium, lit, page, scene  # noqa: F401
from tests.serve.page_script import DOCUMENTS, citations_of
from tests.serve.page_server import Scene, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


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
    assert (
        page.locator(".canvas .dot-kept").count() == 3 and page.locator(".canvas .dot-visited").count() == 3
    )
    assert page.locator(".canvas path.kept").get_attribute("d")
    page.locator(".canvas .leaf").last.hover()
    assert page.inner_text(".told-strip b").startswith("Leaf")
    page.locator(".canvas").press("ArrowLeft")
    assert page.inner_text(".told-strip b").startswith("Node")
    page.locator(".canvas").press("Enter")
    assert "The ship in orbit was called Columbia." in " ".join(lit(page)) or len(lit(page)) > 1


def test_two_thousand_nodes_and_two_thousand_questions_stay_usable(page: Any) -> None:
    page.evaluate(
        "window.slowest = 0; new PerformanceObserver(all => all.getEntries().forEach(one => "
        "slowest = Math.max(slowest, one.duration))).observe({ type: 'longtask' })"
    )
    ask(page, "crowd " + QUESTION)
    assert page.locator("#rows .row").count() == 2000
    page.locator(".row").nth(1).click()
    page.evaluate(
        "import('/page/reader.js').then(reader =>"
        " reader.openDocument({ id: 'long.txt', query: 'many', tab: 'tree' }))"
    )
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
    assert (
        "The model went away" in told
        and "connection reset" in told
        and "Ask again; search still works." in told
        and "r-9" in told
    )
    assert not page.is_visible("#answer-box")


def test_a_refusal_shows_the_servers_words(page: Any) -> None:
    ask(page, "refuse", end="failed")
    assert "Too many questions at once" in page.inner_text(
        "#notice"
    ) and "Wait for one to end." in page.inner_text("#notice")


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
    assert "The server does not answer" in page.inner_text(
        "#notice"
    ) and "sproutrag serve" in page.inner_text("#notice")
    context.close()


def test_a_partial_answer_names_what_stayed_open(page: Any) -> None:
    ask(page, "partial " + QUESTION)
    assert "Partial" in page.inner_text("#flags") and "the reply was not JSON" in page.inner_text("#flags")
    assert "the limit of 6 calls was reached" in page.inner_text("#open")
    assert (
        page.locator(".row[data-state=failed]").count() == 1
        and page.locator(".row[data-state=open]").count() == 1
    )


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
