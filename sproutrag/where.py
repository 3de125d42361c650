"""The filter language of `--where`: parsed here into a condition on one document, never passed on as text.

    year >= 2020 AND language IN ('en', 'de')
    NOT (status = 'draft' OR author.name LIKE 'Müller%')
    tags CONTAINS 'audit' AND metadata.title IS NOT NULL AND "due date" < '2026-01-01'

Fields: doc_id, title, language, source; any other name, also dotted, is a key of the document's metadata,
and `metadata.` in front says so explicitly. Double quotes hold a key with spaces or dots. Values: 'text' (a
quote inside is doubled), numbers, true, false, null. Keywords in any case. CONTAINS looks for a value in a
list or for text in a text.

A comparison with a missing key, a null or a value of another type is unknown: it matches neither as it stands
nor under NOT, as in SQL. Only `= null`, `!= null`, IS NULL and IS NOT NULL ask about the missing itself.
"""

import fnmatch
import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import lance

Value = str | float | bool | None
Row = dict  # the columns of one document; "metadata" is the parsed object
Condition = Callable[[Row], bool | None]  # None: unknown

COLUMNS = frozenset({"doc_id", "title", "language", "source"})
MAX_NESTING = 100
MAX_INTEGER_DIGITS = 300  # longer ones are read as floating point

TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*')
  | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
  | (?P<name>(?:[^\W\d][\w-]*|"[^"]+")(?:\.(?:[\w-]+|"[^"]+"))*)
  | (?P<sign><=|>=|!=|<>|=|<|>|\(|\)|,)
  | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
CONSTANTS = {"NULL": None, "TRUE": True, "FALSE": False}
KEYWORDS = {"AND", "OR", "NOT", "IN", "LIKE", "CONTAINS", "IS", *CONSTANTS}
KINDS = {str: "text", bool: "truth", int: "number", float: "number"}  # only values of one kind compare
ORDERINGS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class WhereError(Exception):
    """A filter that cannot be read; the message shows the place and says what was expected there."""

    exit_status = 2  # wrong usage


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # text, number, name, sign, keyword or end
    text: str
    start: int


def matching_documents(documents: lance.LanceDataset, where: str) -> frozenset[str]:
    """doc_ids of the documents that match; reads only the columns that the filter names."""
    condition, columns = parse(where)
    scanner = documents.scanner(columns=sorted(columns | {"doc_id"}))
    rows = (row for batch in scanner.to_batches() for row in batch.to_pylist())
    return frozenset(row["doc_id"] for row in rows if condition(with_metadata(row)))


def with_metadata(row: Row) -> Row:
    return row | {"metadata": json.loads(row["metadata"] or "{}")} if "metadata" in row else row


def both(first: str | None, second: str | None) -> str | None:
    """The filter that lets through what both do; None lets everything through.

    Each is parsed alone before they are joined, as deep as it will stand: no quote or parenthesis of one can
    reach into the other, and no message about one shows the other.
    """
    given = [where for where in (first, second) if where is not None]
    for where in given:
        parse(where, depth=len(given) - 1)
    return " AND ".join(f"({where})" for where in given) if len(given) > 1 else next(iter(given), None)


def parse(where: str, *, depth: int = 0) -> tuple[Condition, frozenset[str]]:
    """The condition, and the columns of `documents` that it reads. depth: of parentheses around it."""
    reader = Reader(where)
    condition = reader.any_of(depth)
    reader.expect("end", expected="AND, OR or the end of the filter")
    return condition, frozenset(reader.columns)


class Reader:
    """Recursive descent over the tokens of one filter."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.columns: set[str] = set()
        self.tokens = list(tokenize(where))
        self.at = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self, kind: str, *texts: str) -> Token | None:
        """The next token if it is of this kind (and one of these texts)."""
        token = self.token
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self.at += 1
        return token

    def expect(self, kind: str, *texts: str, expected: str) -> Token:
        token = self.take(kind, *texts)
        return token if token else self.fail(expected)

    def fail(self, expected: str) -> NoReturn:
        raise WhereError(message(self.where, self.token.start, f"expected {expected}"))

    def any_of(self, depth: int) -> Condition:
        parts = [self.all_of(depth)]
        while self.take("keyword", "OR"):
            parts.append(self.all_of(depth))
        return parts[0] if len(parts) == 1 else disjunction(parts)

    def all_of(self, depth: int) -> Condition:
        parts = [self.term(depth)]
        while self.take("keyword", "AND"):
            parts.append(self.term(depth))
        return parts[0] if len(parts) == 1 else negation(disjunction([negation(part) for part in parts]))

    def term(self, depth: int) -> Condition:
        if depth > MAX_NESTING:
            self.fail(f"at most {MAX_NESTING} levels of NOT and parentheses")
        if self.take("keyword", "NOT"):
            return negation(self.term(depth + 1))
        if self.take("sign", "("):
            inside = self.any_of(depth + 1)
            self.expect("sign", ")", expected="AND, OR or ')'")
            return inside
        return self.comparison()

    def comparison(self) -> Condition:
        name = self.expect("name", expected="a field, NOT or '('")
        field = self.field(name.text)
        if sign := self.take("sign", "=", "!=", "<>", *ORDERINGS):
            return compare(field, sign.text, self.value())
        if self.take("keyword", "IS"):
            sign_text = "!=" if self.take("keyword", "NOT") else "="
            self.expect("keyword", "NULL", expected="NULL or NOT NULL")
            return compare(field, sign_text, None)
        negated = self.take("keyword", "NOT")
        condition = self.list_or_pattern(field, name.text)
        return negation(condition) if negated else condition

    def list_or_pattern(self, field: Callable[[Row], Any], name: str) -> Condition:
        if self.take("keyword", "IN"):
            return disjunction([compare(field, "=", value) for value in self.values()])
        if self.take("keyword", "LIKE"):
            pattern = self.expect("text", expected="a pattern in single quotes: % any text, _ one character")
            return like(field, unquote(pattern.text))
        if self.take("keyword", "CONTAINS"):
            return contains(field, self.value())
        self.fail(f"=, !=, <, <=, >, >=, IN, LIKE, CONTAINS or IS after {name}")

    def values(self) -> list[Value]:
        self.expect("sign", "(", expected="'(' and a list of values")
        values = [self.value()]
        while self.take("sign", ","):
            values.append(self.value())
        self.expect("sign", ")", expected="',' or ')'")
        return values

    def value(self) -> Value:
        if text := self.take("text"):
            return unquote(text.text)
        if number := self.take("number"):
            short = len(number.text) < MAX_INTEGER_DIGITS and number.text.lstrip("+-").isdecimal()
            return int(number.text) if short else float(number.text)
        constant = self.expect(
            "keyword", *CONSTANTS, expected="a value: 'text' in single quotes, a number, true, false or null"
        )
        return CONSTANTS[constant.text]

    def field(self, name: str) -> Callable[[Row], Any]:
        if name in COLUMNS:
            self.columns.add(name)
            return operator.itemgetter(name)
        self.columns.add("metadata")
        keys = [part.strip('"') for part in re.findall(r'"[^"]+"|[^.]+', name)]
        path = keys[1:] if keys[0] == "metadata" and len(keys) > 1 else keys
        return lambda row: look_up(row["metadata"], path)


# --- conditions


def compare(field: Callable[[Row], Any], sign: str, value: Value) -> Condition:
    if sign in ("!=", "<>"):
        return negation(compare(field, "=", value))
    if value is None and sign == "=":
        return lambda row: field(row) is None
    test: Callable[[Any, Any], bool] = ORDERINGS.get(sign, operator.eq)
    kind = KINDS.get(type(value))

    def condition(row: Row) -> bool | None:
        stored = field(row)
        return test(stored, value) if kind and KINDS.get(type(stored)) == kind else None

    return condition


def like(field: Callable[[Row], Any], pattern: str) -> Condition:
    """SQL LIKE over the whole text, case and all: % is any text, _ one character; never backtracks far."""
    glob = pattern.translate({ord(c): f"[{c}]" for c in "*?["} | {ord("%"): "*", ord("_"): "?"})
    matches = re.compile(fnmatch.translate(glob)).match

    def condition(row: Row) -> bool | None:
        stored = field(row)
        return matches(stored) is not None if isinstance(stored, str) else None

    return condition


def contains(field: Callable[[Row], Any], value: Value) -> Condition:
    """A list holds the value, or a text holds the text."""
    kind = KINDS.get(type(value))

    def condition(row: Row) -> bool | None:
        stored = field(row)
        if isinstance(stored, list):
            return any(KINDS.get(type(item)) == kind and item == value for item in stored)
        return value in stored if kind == "text" == KINDS.get(type(stored)) else None

    return condition


def negation(condition: Condition) -> Condition:
    def negated(row: Row) -> bool | None:
        holds = condition(row)
        return None if holds is None else not holds

    return negated


def disjunction(parts: list[Condition]) -> Condition:
    """True if one is; else unknown if one is; else false."""

    def either(row: Row) -> bool | None:
        unknown = False
        for part in parts:
            holds = part(row)
            if holds:
                return True
            unknown |= holds is None
        return None if unknown else False

    return either


def look_up(metadata: object, path: list[str]) -> object:
    for key in path:
        metadata = metadata.get(key) if isinstance(metadata, dict) else None
    return metadata


# --- tokens


def tokenize(where: str) -> Iterator[Token]:
    """Tokens of the filter; the last one is its end."""
    start = 0
    while True:
        found = TOKEN.match(where, start)
        if not found:
            start += len(where[start:]) - len(where[start:].lstrip())
            unclosed = where[start] in "'\""
            raise WhereError(
                message(where, start, "no end to this quote" if unclosed else "cannot read this")
            )
        kind = found.lastgroup or "end"
        text = found[kind]
        if kind == "name" and text.upper() in KEYWORDS:
            kind, text = "keyword", text.upper()
        yield Token(kind, text, found.start(found.lastgroup or 0))
        if kind == "end":
            return
        start = found.end()


def unquote(text: str) -> str:
    return text[1:-1].replace("''", "'")


def message(where: str, start: int, problem: str) -> str:
    """The problem, and the filter with a caret below the place."""
    line = re.sub(r"\s", " ", where)
    return f"--where, character {start + 1}: {problem}\n  {line}\n  {' ' * start}^"
