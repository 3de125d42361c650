"""The answer in a reply that is still being written: one text value of its JSON, as far as it has come."""

import json
import re

from sproutrag.documents import LONE_SURROGATE

TOKEN = re.compile(
    r"""\s+
  | [{}\[\],:]
  | "(?:[^"\\]|\\.)*"
  | [^\s{}\[\],:"]+(?=[\s{}\[\],:"])""",  # a number or a word, once it has ended
    re.VERBOSE | re.DOTALL,
)
HIGH, LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# What can be read of a text that goes on: whole escapes, and no half of a pair of surrogates.
READABLE = re.compile(
    rf"""(?:[^"\\] | \\["\\/bfnrt] | {HIGH}{LOW} | {HIGH}(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])
         | (?!{HIGH})\\u[0-9a-fA-F]{{4}})*""",
    re.VERBOSE,
)


class PartialAnswer:
    """`path` leads to the text: names of fields and places in lists. A reply says it once.

    Nothing is shown of an answer whose object has said `"answered": false` before.
    """

    def __init__(self, *path: str | int) -> None:
        self.path = list(path)
        self.text = ""
        self.at: list[str | int | None] = []  # of the open objects the field, of the open lists the place
        self.name = ""  # the last whole text: a field's name once a colon follows
        self.left = ""  # what cannot be read yet
        self.over = False

    def feed(self, part: str) -> str:
        """What is newly known of the text."""
        known = len(self.text)
        self.left += part
        while not self.over and (token := self.next_token()):
            self.take(token)
        if not self.over and self.at == self.path and self.left.startswith('"'):
            self.text = read(self.left)
        return self.text[known:]

    def next_token(self) -> str:
        """A reply begins with its first brace; thoughts and words before it are none of it."""
        if not self.at:
            self.left = beginning(self.left)
            if not self.left.startswith("{"):
                return ""
        found = TOKEN.match(self.left)
        self.left = self.left[found.end() :] if found else self.left
        return found[0] if found else ""

    def take(self, token: str) -> None:
        if token[0] in "{[":
            self.at.append(None if token == "{" else 0)
        elif token[0] in "}]":
            self.at.pop()
        elif token == ":" and self.at:
            self.at[-1] = self.name
        elif token == ",":
            place = self.at[-1]
            self.at[-1] = place + 1 if type(place) is int else None
        elif token[0] == '"':
            self.take_text(token)
        elif token == "false" and self.at == [*self.path[:-1], "answered"]:
            self.over = True

    def take_text(self, token: str) -> None:
        if self.at == self.path:
            self.text = read(token)
            self.over = True
        self.name = read(token)


def beginning(text: str) -> str:
    """From the first brace on that no thought holds; where there is none yet, from what may lead to it."""
    brace, thought = text.find("{"), text.find("<think>")
    while thought >= 0 and not 0 <= brace < thought:
        _, ended, rest = text[thought:].partition("</think>")
        if not ended:
            return text[thought:]
        text, brace, thought = rest, rest.find("{"), rest.find("<think>")
    return text[max(brace, 0) :]


def read(quoted: str) -> str:
    """A JSON text without its end, as far as it can be read."""
    readable = READABLE.match(quoted, 1)
    assert readable
    return LONE_SURROGATE.sub("\ufffd", json.loads(f'"{readable[0]}"', strict=False))
