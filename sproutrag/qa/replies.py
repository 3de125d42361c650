"""From the text of a reply to a typed value, and from a type to the JSON schema that asks for it.

Strict: the string "false" is not a truth value, a missing field is not empty. What does not fit is
Unreadable.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from sproutrag.documents import LONE_SURROGATE

T = TypeVar("T")

Choices = Mapping[str, Sequence[str]]  # field name -> what it may say in this call

JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
FENCE = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.DOTALL)
LOOP = re.compile(r"(.{1,40}?)\1{15,}\Z", re.DOTALL)
DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Size:
    """Items of a list or characters of a text in a reply. The schema asks for it, so that a small model comes
    to an end; a reply of another size is still read."""

    least: int
    most: int

    def of(self, kind: str) -> dict[str, int]:
        unit = "Items" if kind == "array" else "Length"
        return {f"min{unit}": self.least, f"max{unit}": self.most}


class Unreadable(Exception):
    """A reply that is not what was asked for; the message says what is wrong with it."""


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def schema_of(kind: Any, choices: Choices | None = None, name: str = "") -> dict[str, Any]:
    """JSON schema of a reply type: fields in order, all required, nothing else allowed."""
    choices = choices or {}
    if get_origin(kind) is Annotated:
        plain, size = get_args(kind)
        schema = schema_of(plain, choices, name)
        return schema | size.of(schema["type"])
    if get_origin(kind) is Literal or name in choices:
        options = choices.get(name, get_args(kind))
        if get_origin(kind) is list:
            return {"type": "array", "items": {"type": "string", "enum": list(options)}}
        return {"type": "string", "enum": list(options)}
    if get_origin(kind) is list:
        item = get_args(kind)[0]
        return {"type": "array", "items": schema_of(item, choices)} | one_per_id(item, choices)
    if kind not in JSON_TYPES:
        sized = get_type_hints(kind, include_extras=True)
        properties = {field: schema_of(hint, choices, field) for field, hint in sized.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    return {"type": JSON_TYPES[kind]}


def one_per_id(item: Any, choices: Choices) -> dict[str, int]:
    """Objects that carry the ids of this call come once for each: a small model else replies []."""
    if "id" not in choices or not is_dataclass(item) or "id" not in item.__dataclass_fields__:
        return {}
    return {"minItems": len(choices["id"]), "maxItems": len(choices["id"])}


def read_reply(text: str, kind: type[T], choices: Choices | None = None) -> tuple[T, str]:
    """The last object in the reply that fits, and how it was found."""
    spoken = without_thinking(text)
    problem = "the reply is empty" if not spoken.strip() else "the reply holds no JSON object"
    for value, how in candidates(spoken):
        try:
            return build(kind, value, choices or {}), how
        except Unreadable as error:
            problem = str(error)
    raise Unreadable(problem)


def without_thinking(text: str) -> str:
    """What follows the last </think>; nothing where thinking never ended (P122)."""
    spoken = text.rpartition("</think>")[2]
    return spoken.partition("<think>")[0]


def candidates(text: str) -> Iterator[tuple[Any, str]]:
    """JSON objects of a reply, likeliest first: all of it, in a fence, anywhere from last to first."""
    fenced = [(block, "json in a fence") for block in reversed(FENCE.findall(text))]
    for found, how in [(text, "json"), *fenced]:
        try:
            yield json.loads(found), how
        except (ValueError, RecursionError):
            continue
    yield from ((value, "json among words") for value in reversed(list(objects_in(text))))


def objects_in(text: str) -> Iterator[Any]:
    place = text.find("{")
    while place >= 0:
        try:
            value, stop = DECODER.raw_decode(text, place)
            yield value
        except (ValueError, RecursionError):
            stop = place + 1
        place = text.find("{", stop)


def build(kind: Any, value: Any, choices: Choices, name: str = "reply") -> Any:
    """`value` as `kind`; raises Unreadable."""
    if is_dataclass(kind):
        return build_object(kind, value, choices, name)
    if get_origin(kind) is list:
        if type(value) is not list:
            raise Unreadable(f"{name} is not a list")
        return [build(get_args(kind)[0], item, {}, name) for item in value]
    if get_origin(kind) is Literal:
        options = choices.get(name, get_args(kind))
        if value not in options:
            raise Unreadable(f"{name} is {str(value)[:40]!r}, not one of {', '.join(options)}")
    elif type(value) is not kind:
        raise Unreadable(f"{name} is {str(value)[:40]!r}, not a {JSON_TYPES[kind]}")
    return LONE_SURROGATE.sub("\ufffd", value) if kind is str else value


def build_object(kind: Any, value: Any, choices: Choices, name: str) -> Any:
    if type(value) is not dict:
        raise Unreadable(f"{name} is not an object")
    hints = hints_of(kind)
    if missing := [field for field in hints if field not in value]:
        raise Unreadable(f"{name} lacks {', '.join(missing)}")
    return kind(**{field: build(hint, value[field], choices, field) for field, hint in hints.items()})


def runs_in_circles(text: str) -> bool:
    """The reply ends in one short piece again and again, white space for example (P119): more room is no
    help."""
    return LOOP.search(text[-1200:]) is not None
