"""What the scripted server tells: four documents, their trees, and one question from its start to its end."""

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

MOON = """Apollo 11 🚀 was the flight that first landed people on the Moon 🌕.
It left Kennedy Space Center on 16 July 1969 and came home eight days later.

Neil Armstrong and Buzz Aldrin walked on the Moon while Michael Collins stayed in orbit.
They spent two and a half hours outside and brought back 21.5 kilograms of stone and dust.

The lander was called Eagle. The ship in orbit was called Columbia.
The landing was watched by some 600 million people 👩🏽‍🚀 around the world.
"""
CREW = """Neil Armstrong was born on 5 August 1930 near Wapakoneta, Ohio.
He flew in Korea and tested the X-15 before he joined the second group of astronauts.

Buzz Aldrin was born on 20 January 1930 in Glen Ridge, New Jersey.
He wrote his thesis on how ships meet in orbit, and his colleagues called him Dr. Rendezvous.
"""
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"> is text. <script>document.title='owned'</script> too.\n"
)
DOCUMENTS = {
    "space/apollo-11.txt": ("Apollo 11", MOON),
    "space/crew.txt": ("The crew of Apollo 11", CREW),
    "hostile #1?.html": ("<b>Not bold</b>", HOSTILE),
    "long.txt": ("A long document", "".join(f"Sentence {n} of many says little.\n" for n in range(1000))),
}


def span_of(doc_id: str, quote: str) -> list[int]:
    start = DOCUMENTS[doc_id][1].index(quote)
    return [start, start + len(quote)]


def leaves_of(text: str) -> list[list[int]]:
    return [list(found.span()) for found in re.finditer(r"\S[^\n]*?(?:[.🌕](?= [A-Z]|\n|$)|(?=\n|$))", text)]


def tree_of(leaves: int) -> list[Json]:
    """Halves, and halves of halves; children before parents, the root last."""
    nodes = [{"node": n, "children": [], "slice": [n, n + 1], "height": 0.0} for n in range(leaves)]
    level = list(nodes)
    while len(level) > 1:
        above = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            both = [left["slice"][0], right["slice"][1]]
            nodes.append(
                {
                    "node": len(nodes),
                    "children": [left["node"], right["node"]],
                    "slice": both,
                    "height": 1 + max(left["height"], right["height"]) + (both[1] - both[0]) / 10_000,
                }
            )
            above.append(nodes[-1])
        level = above + level[2 * len(above) :]
    return nodes


def path_to(nodes: list[Json], goal: int) -> list[Json]:
    """From the root to a leaf, the sibling of each step looked at and left."""
    path, node, depth = [], nodes[-1], 0
    while node["children"]:
        depth += 1
        right = goal >= nodes[node["children"][1]]["slice"][0]
        for side, child in enumerate(node["children"]):
            kept = bool(side) == right
            path.append({"node": child, "depth": depth, "score": 0.4 + kept * 0.05 * depth, "kept": kept})
        node = nodes[node["children"][right]]
    return path


# --- one question


QUESTIONS = (
    (
        "0",
        None,
        0,
        "vertical",
        "Who was the older of the two men who walked on the Moon with Apollo 11?",
        "Buzz Aldrin",
    ),
    (
        "0.1",
        "0",
        0,
        "external",
        "Which two men walked on the Moon with Apollo 11?",
        "Neil Armstrong and Buzz Aldrin",
    ),
    ("0.2", "0", 1, "external", "When was Neil Armstrong born?", "5 August 1930"),
    ("0.3", "0", 1, "external", "When was Buzz Aldrin born?", "20 January 1930"),
    ("0.4", "0", 1, "external", "Who walked on the Moon with Apollo 11?", "Neil Armstrong and Buzz Aldrin"),
    ("0.5", "0", 2, "lateral", "Which of the two was born first?", "Buzz Aldrin"),
)
QUOTES = {
    "0.1": ("space/apollo-11.txt", "Neil Armstrong and Buzz Aldrin walked on the Moon"),
    "0.2": ("space/crew.txt", "Neil Armstrong was born on 5 August 1930"),
    "0.3": ("space/crew.txt", "Buzz Aldrin was born on 20 January 1930"),
}


def citation(doc_id: str, quote: str) -> Json:
    return {"doc_id": doc_id, "spans": [span_of(doc_id, quote)], "quote": quote}


def passage(doc_id: str, quote: str) -> Json:
    return citation(doc_id, quote) | {
        "title": DOCUMENTS[doc_id][0],
        "text": quote,
        "score": 0.731,
        "node": 4,
        "leaves": [2],
        "kept": True,
    }


def nodes_of(question: str) -> list[Json]:
    nodes = [
        {
            "id": id,
            "parent": parent,
            "depth": id.count("."),
            "wave": wave,
            "question": text if parent else question,
            "strategy": strategy,
            "state": "done",
            "cluster": ["0.2", "0.3"] if id in ("0.2", "0.3") else [],
            "reuses": "0.1" if id == "0.4" else None,
            "answer": answer,
            "failure": None,
            "notes": [],
        }
        for id, parent, wave, strategy, text, answer in QUESTIONS
    ]
    if "partial" in question:
        nodes[4] |= {
            "state": "failed",
            "answer": None,
            "failure": "the limit of 6 calls was reached",
            "reuses": None,
        }
        nodes[2] |= {"answer": None, "notes": ["one repair: the reply was not JSON"]}
    if "crowd" in question:
        nodes += [
            nodes[3]
            | {"id": f"0.5.{n}", "parent": "0.5", "cluster": [], "question": f"Question {n} of the crowd?"}
            for n in range(1, 1995)
        ]
    return nodes


def citations_of(question: str) -> list[Json]:
    if "hostile" in question:
        return [citation("hostile #1?.html", "<script>document.title='owned'</script> too.")]
    return [citation(*QUOTES[id]) for id in ("0.1", "0.3", "0.2")]


def trace_node(node: Json, nodes: list[Json], question: str) -> Json:
    """As a QuestionNode writes itself."""
    usage = {
        "calls": 1,
        "prompt_tokens": 512,
        "completion_tokens": 48,
        "wasted_calls": 0,
        "wasted_tokens": 0,
        "seconds": 0.4,
    }
    quotes = [QUOTES[node["id"]]] if node["id"] in QUOTES else []
    return {
        key: node[key]
        for key in (
            "id",
            "depth",
            "wave",
            "question",
            "strategy",
            "cluster",
            "reuses",
            "answer",
            "failure",
            "notes",
        )
    } | {
        "planned": node["question"],
        "entity": "",
        "query": node["question"] if node["strategy"] == "external" else "",
        "evidence": [passage(*quote) for quote in quotes],
        "answered": node["answer"] is not None,
        "answers": [node["answer"]] if node["answer"] else [],
        "citations": [citation(*quote) for quote in quotes],
        "unexplored": [],
        "partial": False,
        "bill": {"usage": usage, "calls": []},
        "began": 1_790_000_000.0,
        "ended": 1_790_000_002.4,
        "children": [trace_node(child, nodes, question) for child in nodes if child["parent"] == node["id"]],
    }


def outcome_of(question: str, nodes: list[Json]) -> Json:
    left = [
        {"id": n["id"], "question": n["question"], "reason": n["failure"] or "the evidence does not say"}
        for n in nodes
        if not n["answer"]
    ]
    usage = {
        "calls": 6,
        "prompt_tokens": 3072,
        "completion_tokens": 288,
        "wasted_calls": 0,
        "wasted_tokens": 0,
        "seconds": 2.2,
    }
    answer = "<b>Buzz</b> Aldrin" if "hostile" in question else "Buzz Aldrin, who was born in January 1930."
    return {
        "question": question,
        "answer": answer,
        "answers": [answer],
        "citations": citations_of(question),
        "answered": True,
        "partial": bool(left),
        "open": left,
        "warnings": [f"{n['id']}: {note}" for n in nodes for note in n["notes"]],
        "usage": usage,
        "trace": {
            "format": 1,
            "model": "qwen3-4b",
            "method": "apt-rag",
            "snapshot": 7,
            "prompts": ["plan@3"],
            "root": trace_node(nodes[0], nodes, question),
        },
    }


def events_of(question: str) -> Iterator[tuple[str, Any]]:
    """The good stream; `done` last."""
    nodes = nodes_of(question)
    yield "start", {"request_id": "r-1", "question": question, "snapshot": 7, "model": "qwen3-4b"}
    for state in ("waiting", "planning", "retrieving"):
        yield from (("node", node | {"state": state, "answer": None, "failure": None}) for node in nodes)
    yield from (("evidence", {"id": id, "passages": [passage(*quote)]}) for id, quote in QUOTES.items())
    yield from (("node", node) for node in nodes[1:])
    told = outcome_of(question, nodes)
    yield from (("answer", {"delta": word}) for word in re.findall(r"\S+\s*", told["answer"]))
    yield "node", nodes[0]
    yield "done", told
