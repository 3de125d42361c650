import json
import operator
import time

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sproutrag.where import MAX_NESTING, WhereError, both, matching_documents, parse

ROW = {
    "doc_id": "it's",
    "title": "Müller & Söhne",
    "language": "de",
    "source": "a.jsonl:3",
    "metadata": {
        "year": 2024,
        "draft": False,
        "author": {"name": "Ann"},
        "tags": ["audit", 7],
        "due date": "2026-01-01",
        "year text": "2024",
        "nothing": None,
        "title": "inner",
    },
}


def holds(where: str) -> bool | None:
    return parse(where)[0](ROW)


@pytest.mark.parametrize(
    "where",
    [
        "year >= 2020 and language IN ('en', 'de')",
        "year = 2024.0",
        "metadata.year < 2.1e3",
        "author.name LIKE 'A%' AND title LIKE 'M_ller%'",
        "title LIKE '%& S%' AND NOT title LIKE 'müller%'",
        "title CONTAINS '& S' and tags CONTAINS 'audit' and tags contains 7",
        "NOT tags CONTAINS 'x' AND year NOT IN (1, 2)",
        "doc_id = 'it''s' AND source != ''",
        "draft = false AND draft != true",
        "\"due date\" < '2026-02-01'",
        "metadata.title = 'inner' AND title <> 'inner'",
        "missing IS NULL AND missing = null AND nothing IS NULL",
        "author.name.first IS NULL AND tags.x IS NULL",
        "year IS NOT NULL AND year != null",
        "year = 1 OR year = 2 OR NOT (year = 1 OR year = 2)",
        "year IN (null, 2024) AND missing IN (null)",
        "missing = 1 OR year = 2024",
    ],
)
def test_a_filter_that_matches(where):
    assert holds(where) is True


@pytest.mark.parametrize(
    "where",
    [
        "missing = 'x'",
        "missing != 'x'",
        "missing < 3",
        "nothing > 0",
        "year = '2024'",
        "year != '2024'",
        "year < 'z'",
        '"year text" = 2024',
        "draft = 0",
        "draft < 1",
        "year = true",
        "tags = 'audit'",
        "author CONTAINS 'name'",
        "year LIKE '2%'",
        "year CONTAINS 2",
        "year < null",
        "missing IN (1, 2)",
        "missing = 1 AND year = 2024",
    ],
)
def test_missing_keys_and_other_types_match_neither_way(where):
    assert holds(where) is None
    assert holds(f"NOT ({where})") is None


def test_unknown_does_not_hide_what_is_certain():
    assert holds("missing = 1 AND year = 1") is False
    assert holds("NOT (missing = 1 AND year = 1)") is True


@pytest.mark.parametrize(
    ("where", "character", "expected"),
    [
        ("", 1, "a field"),
        ("year", 5, "IN, LIKE, CONTAINS or IS after year"),
        ("year =", 7, "a value"),
        ('title = "x"', 9, "'text' in single quotes"),
        ("title = 'x", 9, "no end to this quote"),
        ("(year = 1", 10, "')'"),
        ("year = 1 title = 'x'", 10, "the end of the filter"),
        ("year = 1)", 9, "the end of the filter"),
        ("year IN ()", 10, "a value"),
        ("year IN (1 2)", 12, "',' or ')'"),
        ("title LIKE 3", 12, "a pattern"),
        ("year IS 3", 9, "NULL"),
        ("year $ 3", 6, "cannot read this"),
        ("year = 12abc", 8, "cannot read this"),
        ("year = 1; DROP TABLE documents", 9, "cannot read this"),
        ("doc_id = 'x' OR '1'='1'", 17, "a field"),
        ("AND", 1, "a field"),
        ("(" * 5000 + "a = 1", 102, "at most 100"),
        ("NOT " * 5000 + "a = 1", 405, "at most 100"),
    ],
)
def test_an_error_shows_the_place_and_what_was_expected(where, character, expected):
    with pytest.raises(WhereError) as error:
        parse(where)
    said = str(error.value).split("\n")
    assert f"character {character}:" in said[0] and expected in said[0]
    assert said[1].strip() == where.strip() and said[2].index("^") - 2 == character - 1


def test_only_the_columns_that_a_filter_names_are_read():
    assert parse("language = 'de'")[1] == {"language"}
    assert parse("year = 1 AND title = 'x'")[1] == {"metadata", "title"}


def test_a_pattern_never_takes_long():
    condition, _ = parse(f"title LIKE '{'a%' * 40}b'")
    start = time.perf_counter()
    assert condition(ROW | {"title": "a" * 20_000}) is False
    assert time.perf_counter() - start < 2


# --- against plain Python

NAMES = ["title", "language", "year", "author.name", "n"]
TEXTS = st.text(st.sampled_from("ab'%_\"\\ ü"), max_size=4)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 1.0, 2.5]), TEXTS)
COMPARISONS = st.tuples(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.sampled_from(NAMES), VALUES)
TREES = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
        st.tuples(st.just("IN"), st.sampled_from(NAMES), st.lists(VALUES, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)
DOCUMENTS = st.fixed_dictionaries(
    {"title": TEXTS, "language": TEXTS},
    optional={"year": VALUES, "author": st.fixed_dictionaries({"name": VALUES}), "n": VALUES},
)


PYTHON = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def literal(value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value)


def written(tree) -> str:
    match tree:
        case ["NOT", inner]:
            return f"NOT ({written(inner)})"
        case ["AND" | "OR" as word, left, right]:
            return f"({written(left)}) {word} ({written(right)})"
        case ["IN", name, values]:
            return f"{name} IN ({', '.join(map(literal, values))})"
        case [sign, name, value]:
            return f"{name} {sign} {literal(value)}"


def oracle(tree, document: dict) -> bool | None:
    match tree:
        case ["NOT", inner]:
            return {True: False, False: True, None: None}[oracle(inner, document)]
        case ["AND" | "OR" as word, left, right]:
            results = {oracle(left, document), oracle(right, document)}
            decisive = word == "OR"
            return decisive if decisive in results else None if None in results else not decisive
        case ["IN", name, values]:
            results = {oracle(("=", name, value), document) for value in values}
            return True if True in results else None if None in results else False
        case [sign, name, value]:
            stored = document.get("author", {}).get("name") if name == "author.name" else document.get(name)
            if value is None and sign in ("=", "!="):
                return (stored is None) == (sign == "=")
            kinds = {type(None): 0, bool: 1, int: 2, float: 2, str: 3}
            if value is None or kinds[type(stored)] != kinds[type(value)]:
                return None
            return PYTHON[sign](stored, value)


@settings(max_examples=300, deadline=None)
@given(TREES, DOCUMENTS)
def test_a_filter_means_what_plain_python_says(tree, document):
    own = {key: document[key] for key in ("title", "language")}
    metadata = {key: value for key, value in document.items() if key not in own}
    assert parse(written(tree))[0](own | {"metadata": metadata}) == oracle(tree, document)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("()'\"=<>!, AND OR NOT IN LIKE a.1-%\n\\;"), max_size=30))
def test_any_text_is_a_filter_or_a_filter_error(text):
    try:
        condition, columns = parse(text)
    except WhereError:
        return
    assert condition(ROW) in (True, False, None) and columns <= {
        "doc_id",
        "title",
        "language",
        "source",
        "metadata",
    }


def test_documents_of_a_table(tmp_path):
    rows = [
        {
            "doc_id": "x' OR '1'='1",
            "title": "a",
            "language": "en",
            "source": "s",
            "metadata": '{"year": 2020}',
        },
        {"doc_id": "b", "title": "b", "language": "de", "source": "s", "metadata": '{"year": "2020"}'},
        {"doc_id": "c", "title": "c", "language": "de", "source": "s", "metadata": "{}"},
    ]
    table = lance.write_dataset(pa.Table.from_pylist(rows), str(tmp_path / "documents.lance"))
    assert matching_documents(table, "year <= 2020") == {"x' OR '1'='1"}
    assert matching_documents(table, "doc_id = 'x'' OR ''1''=''1'") == {"x' OR '1'='1"}
    assert matching_documents(table, "language = 'de'") == {"b", "c"}
    assert matching_documents(table, "year IS NULL OR year = '2020'") == {"b", "c"}
    assert matching_documents(table, "year > 2020") == frozenset()


# --- two filters at once


@pytest.mark.parametrize(
    "second",
    [
        "year = 2024) OR (year = 2024",
        "year = 2024 OR year = 2024",
        "title LIKE '%' OR NOT doc_id = ''",
        "doc_id = 'it''s') OR (title LIKE '%",
        "title = ') OR (year = 2024'  OR year = 2024",
        "year = 2024 OR ')' = ')'",
        '"a) OR (b" IS NULL',
        "year IS NOT NULL OR year IS NULL",
        "year = 2024 --",
        "year = 2024 OR",
        "'",
        '"',
        ")",
        "",
        "year = 2024\\",
    ],
)
def test_a_hostile_filter_never_widens_the_tenants(second):
    try:
        joined = both("language = 'en'", second)
    except WhereError as error:
        assert "language" not in str(error), "the message shows the other filter"
        return
    assert holds(joined) is False
    assert holds(both(second, "language = 'en'")) is False
    assert holds(both("language = 'de'", second)) is holds(second)


@given(TREES, TREES, DOCUMENTS)
def test_both_holds_where_each_does(first, second, document):
    row = {"doc_id": "d", "source": ""} | document
    row = {k: document.get(k, "") for k in ("title", "language")} | row | {"metadata": document}
    each = [parse(written(tree))[0](row) is True for tree in (first, second)]
    joined = both(written(first), written(second))
    assert (parse(joined)[0](row) is True) == all(each)


def test_both_of_one_is_that_one_and_of_none_is_none():
    assert (both(None, None), both("year = 1", None), both(None, "year = 1")) == (
        None,
        "year = 1",
        "year = 1",
    )


def test_a_filter_as_deep_as_can_be_still_reads_inside_the_other():
    deepest = "(" * (MAX_NESTING - 1) + "year = 2024" + ")" * (MAX_NESTING - 1)
    assert holds(both("language = 'de'", deepest)) is True
    with pytest.raises(WhereError):
        both("language = 'de'", f"({deepest})")
