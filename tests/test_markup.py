"""HTML as text: what a reader sees is kept, whatever the markup."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag.markup import main_content, parse, text_of
from tests.small_files import PROSE, only, read_bytes

MENU = "<ul><li><a href=/>Home</a></li><li><a href=/a>About</a></li><li><a href=/c>Contact</a></li></ul>"


def test_a_plain_page_keeps_headings_lists_and_code_and_loses_its_menu(tmp_path):
    page = f"""<!doctype html><title>The ferry | Site</title><nav>{MENU}</nav>
        <div class=top>{MENU}</div><h1>The ferry</h1><p>{PROSE}<br>Children go <b>free</b>.</p>
        <ol><li>One rule.<li>Two.<ul><li>Nested.</ul></ol><pre>code  here\n  indented</pre>
        <footer>All rights reserved.</footer><script>var x;</script>"""
    document = only(read_bytes(tmp_path, page.encode(), "p.html"))
    assert document.title == "The ferry"
    assert document.text == (
        f"# The ferry\n\n{PROSE}\nChildren go free.\n\n1. One rule.\n2. Two.\n  - Nested.\n\n"
        "```\ncode  here\n  indented\n```"
    )
    assert json.loads(document.metadata) == {"format": "html", "left_out_characters": 52}


def test_a_table_becomes_rows_under_their_header(tmp_path):
    page = "<html><table><tr><th>Route<th>Fare<tr><td>North|East<td>4</table><p>Next."
    assert only(read_bytes(tmp_path, page.encode())).text == (
        "| Route | Fare |\n|---|---|\n| North\\|East | 4 |\n\nNext."
    )


def test_a_page_that_is_a_list_of_links_is_kept():
    assert "Contact" in text_of(main_content(parse(f"<body>{MENU}<p>Hi."))[0])


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>one<p>two <div>three<td>four", "one\n\ntwo\n\nthree\n\nfour"),
        ("<p>a &nbsp; b < 5 &bogus;</p", "a \xa0 b < 5 &bogus;"),
        ("<title>T</title><main>in the head <p>of the tree</main>", "in the head\n\nof the tree"),
        ("<title/><p>after an empty title", "after an empty title"),
        ("<p>x<!-- unseen --> y<span hidden>no</span></p>", "x y"),
    ],
)
def test_malformed_pages(page, text):
    assert text_of(main_content(parse(page))[0]) == text


words = st.text(alphabet="abcdé双", min_size=1, max_size=5)
tags = st.sampled_from(["p", "div", "b", "h2", "ul", "li", "table", "tr", "td", "th", "pre", "dl"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(words, tags.map("<{}>".format), tags.map("</{}>".format)), max_size=30))
def test_no_visible_word_is_lost_whatever_the_markup(pieces):
    root = parse("<body><p>start " + " ".join(pieces))
    assert sorted(w for w in text_of(root).split() if w.isalpha()) == sorted("".join(
        text + " " for text in root.itertext()).split())  # fmt: skip
