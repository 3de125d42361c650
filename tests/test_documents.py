"""Laws and symptoms of cutting text into leaves. The grapheme oracle is the `regex` package's \\X."""

import random
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag import sentences
from sproutrag.documents import Document, content_hash, coverage, detect_language, leaf_spans, row_context

PIECES = [
    "A sentence. ", "Two here! And here? ", "\n", "\n\n", "\r\n", "# Head\n",
    "- item\n", "1. ", "| a | b |\n", "|---|---|\n", "```\n", "x = 1\n", "。", "；", "……",
    "你好", "これは「テスト。」です。", "…", "\u200d", "👨\u200d👩\u200d👧", "é", "🇩🇪", "...", "\x00",
    "\x10", "\u061c", "مرحبا. ", "Title\n===\n", "  ", "\u3000", "\ufeff", "z" * 300,
]  # fmt: skip
TEXTS = st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
LANGUAGES = st.sampled_from(["en", "zh", "de", "ar", "ja", "xx", "zh-CN", ""])


def leaves(text, **options):
    return [text[start:end] for start, end in leaf_spans(text, **options)]


def plain_coverage(text, spans):
    counts = [sum(start <= i < end for start, end in spans) for i, c in enumerate(text) if not c.isspace()]
    return sum(count == 1 for count in counts) / len(counts) if counts else 1.0


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, language=LANGUAGES, sentences_per_leaf=st.integers(1, 4))
def test_every_visible_character_is_in_exactly_one_leaf(text, language, sentences_per_leaf):
    spans = leaf_spans(text, language=language, sentences_per_leaf=sentences_per_leaf)
    assert spans.dtype == np.int32 and spans.shape == (len(spans), 2)
    flat = spans.ravel()
    assert (np.diff(flat)[::2] > 0).all() and (np.diff(flat)[1::2] >= 0).all(), (
        "ascending, disjoint, not empty"
    )
    assert coverage(text, spans) == plain_coverage(text, spans) == 1.0
    assert all(leaf == leaf.strip() and leaf for leaf in (text[a:b] for a, b in spans))
    assert np.array_equal(spans, leaf_spans(text, language=language, sentences_per_leaf=sentences_per_leaf))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_no_cut_inside_what_a_reader_sees_as_one_character(text):
    spans = leaf_spans(text, language="en", sentences_per_leaf=1)
    graphemes = {match.start() for match in regex.finditer(r"\X", text)}
    touching = {b for (_, b), (a, _) in pairwise(spans) if a == b}
    assert touching <= graphemes


@given(text=st.text(max_size=60), data=st.data())
def test_coverage_counts_exactly_once(text, data):
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    spans = np.array(list(zip(ends[::2], ends[1::2], strict=False)) * 2, dtype=np.int32).reshape(-1, 2)[:3]
    assert coverage(text, spans) == plain_coverage(text, spans)


def test_coverage_of_an_empty_text_is_whole():
    assert coverage("", np.zeros((0, 2), np.int32)) == coverage(" \n", np.zeros((0, 2), np.int32)) == 1.0


# Linear time: work is counted in characters handed to sentencex, not in seconds


@pytest.mark.parametrize(
    "unit", ["Hello world this is text. ", "word ", "x", "好。", "双方每月对账", "a\u0301", "“a. ", "1. "]
)
def test_work_grows_with_length(unit, monkeypatch):
    read = []
    boundaries = sentences.get_sentence_boundaries
    monkeypatch.setattr(
        sentences,
        "get_sentence_boundaries",
        lambda lang, text: read.append(len(text)) or boundaries(lang, text),
    )
    text = unit * (100_000 // len(unit))
    leaf_spans(text, language="en")
    assert sum(read) <= 4 * len(text) and max(read, default=0) <= sentences.WINDOW


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", ["Hello world this is some text. ", "x", "双方每月对账并且负责交付。", "\n"])
def test_ten_megabytes_in_one_line(unit):
    text = unit * (10_000_000 // len(unit.encode()))
    spans = leaf_spans(text)
    lengths = spans[:, 1] - spans[:, 0]
    assert coverage(text, spans) == 1.0 and lengths.max(initial=0) <= sentences.MAX_SENTENCE


def test_catastrophic_brackets_and_one_long_token_return_at_once():
    assert len(leaves("See notes..[101 202 303 404 505 606 707 808 909 111]")) == 1
    token = "x." + "1" * 60 + "qq"
    assert leaves(token) == [token]


def test_long_text_without_punctuation_is_cut_at_spaces():
    text = " ".join(f"word{i}" for i in range(2_000))
    found = leaves(text)
    assert all(len(leaf) <= 2_000 for leaf in found) and " ".join(found) == text
    chinese = "双方每月对账并且负责交付，" * 400
    assert all(leaf.endswith("，") and len(leaf) <= 2_000 for leaf in leaves(chinese, language="zh"))


def test_family_emoji_is_not_cut_in_half():
    family = "👨‍👩‍👧‍👦"
    assert all(len(leaf) % len(family) == 0 for leaf in leaves(family * 2_000))
    assert all(len(leaf) % 2 == 0 for leaf in leaves("e\u0301" * 3_000))


# Sentences


def test_dots_in_addresses_and_versions_do_not_end_sentences():
    text = "Mail ops@example.com or see https://ex.org/a.b v1.2.3. Then restart."
    assert leaves(text, sentences_per_leaf=1) == [text[:54], "Then restart."]
    assert (
        len(leaves("It costs 1.5 million, e.g. in the U.S. market. Dr. Smith agrees.", sentences_per_leaf=1))
        == 2
    )


def test_chinese_clauses_end_sentences():
    text = "甲方负责交付；乙方负责验收；双方每月对账……逾期另议"
    for language in ("zh", "", "en"):
        assert leaves(text, language=language, sentences_per_leaf=1) == [
            "甲方负责交付；", "乙方负责验收；", "双方每月对账……", "逾期另议",
        ]  # fmt: skip


def test_full_width_marks_leave_no_empty_sentence():
    assert leaves("真的吗？……是的。", language="zh", sentences_per_leaf=1) == ["真的吗？……", "是的。"]


def test_japanese_quotation_inside_a_sentence():
    assert leaves("これは「テスト。」です。次。", language="ja", sentences_per_leaf=1) == [
        "これは「テスト。」です。",
        "次。",
    ]


def test_bracket_that_never_closes_does_not_swallow_the_rest():
    text = "It starts (here and never closes. " + "This is one more sentence of the text. " * 60
    assert len(leaves(text, sentences_per_leaf=1)) > 50
    speech = '"' + "He told me a long story about it. " * 60 + '" he said.'
    assert len(leaves(speech, sentences_per_leaf=1)) > 50


def test_arabic_question_mark_ends_a_sentence_and_marks_stay():
    text = "هل تعمل الخدمة\u200f؟ نعم\u061c، تعمل."
    assert leaves(text, language="ar", sentences_per_leaf=1) == [text[:16], text[17:]]


def test_number_of_a_clause_stays_with_its_sentence():
    text = "2.1. The Recipient shall keep the Information secret. 2.2. It shall return it on request. " * 4
    assert not any(len(leaf) < 20 for leaf in leaves(text.strip(), sentences_per_leaf=1))


def test_punctuation_is_no_leaf_of_its_own():
    assert leaves("First here. ... Second here.\n\n* * *\n\nThird.", sentences_per_leaf=1)[-1] == "Third."
    assert all(
        any(map(str.isalnum, leaf)) for leaf in leaves("---\n\nA text. !!! ???\n\n----\n\n- \n\n| |\n")
    )
    assert leaves("...") == ["..."]
    assert leaves("One is here.\n\n- 13 -\n\nTwo is here.") == ["One is here.\n\n- 13 -", "Two is here."]


def test_up_to_m_sentences_share_a_leaf():
    text = "One is here. Two is here. Three is here. Four is here. Five is here."
    assert [leaf.count(".") for leaf in leaves(text)] == [2, 2, 1]
    assert [leaf.count(".") for leaf in leaves(text, sentences_per_leaf=3)] == [3, 2]


def test_repeated_paragraphs_are_separate_leaves():
    assert leaves("Same text.\n\n" * 5) == ["Same text."] * 5


# Layout


def test_leaf_does_not_cross_a_paragraph():
    assert leaves("One is here.\n\nTwo is here.\n \t\nThree is here.") == [
        "One is here.",
        "Two is here.",
        "Three is here.",
    ]


def test_hard_wrapped_prose_is_one_paragraph():
    text = (
        "There was once upon a time a King who had a wife with golden hair,\nand she was so fine that no\n"
        "other was like her. It happened that she fell ill, and when the\nKing heard of it he wept."
    )
    assert leaves(text, sentences_per_leaf=1) == [text[: text.index(" It")], text[text.index("It") :]]
    assert len(leaves("the op-\nposite currentdirection with-\nin a day.")) == 1


def test_chinese_paragraphs_end_at_a_line_break():
    first = "公司在这一年内进行了多项重大事件，进一步扩大了市场份额，提升了公司的控制力和影响力，成绩显著。"
    assert leaves(f"{first}\n第二段在这里开始。它有两句。", language="zh") == [
        first,
        "第二段在这里开始。它有两句。",
    ]


def test_lines_of_a_form_are_not_one_sentence():
    text = "Name of the patient: M. Young\nDate of the admission: 28 February\nName of the hospital: Richmond"
    assert leaves(text, sentences_per_leaf=1) == text.split("\n")


def test_table_rows_are_leaves_with_their_header_as_context():
    rows = [f"| row {i} | {i} | x. y | z |" for i in range(60)]
    header = "| name | n | note | end |\n|:---|---:|---|---|"
    text = "Before the table.\n\n" + "\n".join([header, *rows]) + "\n\nAfter it."
    assert leaves(text) == ["Before the table.", header, *rows, "After it."]
    for start, end in leaf_spans(text):
        context = row_context(text, int(start))
        assert (context is not None and text[slice(*context)] == header) == (text[start:end] in rows)


def test_row_context_outside_tables():
    text = "| a | b |\n| c | d |\n\n```\n| a |\n|---|\n| b |\n```\n"
    assert all(row_context(text, start) is None for start in range(len(text) + 1))
    assert row_context("", 0) is None


def test_heading_stays_with_what_follows():
    table = "| k | v |\n|---|---|\n| a | 1 |\n"
    text = "\n".join(f"## Part {i}\n\n{table}" for i in range(3))
    found = leaves(text)
    assert found == [part for i in range(3) for part in (f"## Part {i}\n\n| k | v |\n|---|---|", "| a | 1 |")]
    assert leaves("# Title\n\nText is here. More of it. Rest.")[0] == "# Title\n\nText is here. More of it."
    assert leaves("Chief Complaint\n---------------\nHe coughs.") == [
        "Chief Complaint\n---------------\nHe coughs."
    ]
    assert leaves("Text is here.\n\n## Nothing behind") == ["Text is here.\n\n## Nothing behind"]


def test_list_items_are_whole():
    text = "Needed:\n- a cup. Not a glass.\n- some tea\n  from Assam\n* milk"
    assert leaves(text, sentences_per_leaf=1) == [
        "Needed:\n- a cup. Not a glass.",
        "- some tea\n  from Assam",
        "* milk",
    ]


def test_code_is_cut_in_groups_of_lines():
    code = "```python\n" + "".join(f"x{i} = f(x{i - 1}). y\n\n" for i in range(30)) + "```"
    found = leaves("Before it.\n\n" + code + "\nAfter it.")
    assert found[0] == "Before it." and found[-1] == "After it." and len(found) > 4
    assert all(leaf.count("=") >= 2 for leaf in found[1:-1])


def test_unclosed_fence_is_prose():
    assert leaves("```\nOne is here.\n\n| a |\n\n- b", sentences_per_leaf=1) == [
        "```\nOne is here.",
        "| a |",
        "- b",
    ]


def test_control_strings_of_models_are_plain_text():
    text = "The marker <|endoftext|> and <|im_start|>system ends a text."
    assert leaves(text) == [text]


def test_control_characters_do_not_shift_spans():
    text = "T\x10his is\u202fa te\x10st.\nSecond one."
    assert leaves(text, sentences_per_leaf=1) == ["T\x10his is\u202fa te\x10st.", "Second one."]


def test_lone_surrogate_does_not_stop_the_splitter():
    assert leaves("A \udc9a word. Next one.", sentences_per_leaf=1) == ["A \udc9a word.", "Next one."]


# Language and identity


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("zh", "甲方负责交付；乙方负责验收"),
        ("de", "Die Frist beträgt vier Wochen nach Zugang."),
        ("ar", "هذا اختبار بسيط"),
        ("en", "The fee is due within thirty days."),
        ("en", "Hello world"),
        ("ja", "これはテストです"),
        ("ru", "Привет, мир"),
        ("fr", "Le café est ouvert toute la journée."),
        ("en", "12345 --- ###"),
        ("en", ""),
    ],
)
def test_language_of_short_texts(language, text):
    assert detect_language(text) == language


def test_language_reads_a_bounded_sample():
    assert detect_language("The fee is due within thirty days. " * 10 + "好" * 1_000_000) == "en"


def test_hash_covers_what_is_stored_and_not_the_place():
    document = Document("a", "b", "c", "en", "{}", "x:1")
    same = Document("a", "b", "c", "en", "{}", "y:2")
    others = [
        Document("ab", "", "c", "en"),
        Document("a", "b", "", "cen"),
        Document("a", "b", "c", "en", '{"k": 1}'),
    ]
    assert content_hash(document) == content_hash(same) and len(content_hash(document)) == 32
    assert len({content_hash(other) for other in [document, *others]}) == 4
    content_hash(Document("a", "\udc9a"))


def test_graphemes_agree_with_the_oracle():
    rng = random.Random(7)
    alphabet = [
        "a",
        "e\u0301",
        "👨‍👩‍👧",
        "👍🏽",
        "🇩🇪",
        "한",
        "\u1112\u1161\u11ab",
        "नि",
        "\r\n",
        "ไทย",
        "é",
        " ",
    ]
    text = "".join(rng.choices(alphabet, k=2_000))
    starts = {match.start() for match in regex.finditer(r"\X", text)}
    wrong = [i for i in range(1, len(text)) if i not in starts and not sentences.in_grapheme(text, i)]
    assert not wrong, [unicodedata.name(text[i], "?") for i in wrong[:5]]
