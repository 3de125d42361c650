"""The endpoint as clients see it: a real server, a real index, an engine that knows the gold plans."""

import json
import threading
import time
from typing import Any

import httpx2
import openai
import pytest

from tests.serve.endpoint import GOLD, SECRETS, events_of, header

JSON = {"Content-Type": "application/json"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def client(server: str) -> Any:
    with httpx2.Client(base_url=server, timeout=60) as client:
        yield client


def ask(client: Any, question: str, key: str = "all", **body: Any) -> Any:
    return client.post("/v1/ask", json={"question": question} | body, headers=header(key))


# --- search, documents, trees


def test_search_finds_passages_whose_text_is_what_the_document_says_there(client: Any) -> None:
    reply = client.post("/v1/search", json={"query": "vault heliotrope", "k": 3}, headers=header("all"))
    assert reply.status_code == 200, reply.text
    [first, *_] = reply.json()["passages"]
    stored = client.get(f"/v1/documents/{first['doc_id']}", headers=header("all")).json()
    assert first["text"] == "".join(stored["text"][a:b] for a, b in first["spans"])
    assert first["text"] == SECRETS["red"]


def test_a_tree_has_every_leaf_once_and_a_query_lights_the_beams_path_to_the_evidence(client: Any) -> None:
    doc_id = GOLD[0].evidence[0]["doc_id"]
    found = client.get(f"/v1/trees/{doc_id}", params={"query": GOLD[0].question}, headers=header("all"))
    assert found.status_code == 200, found.text
    tree = found.json()
    n = len(tree["leaves"])
    assert sorted(tree["order"]) == list(range(n)) and len(tree["nodes"]) == 2 * n - 1
    assert tree["nodes"][tree["root"]]["slice"] == [0, n]
    assert tree["evidence"] and {step["node"] for step in tree["path"]} >= set(tree["evidence"])
    kept = {step["node"] for step in tree["path"] if step["kept"]} | {tree["root"]}
    parent = {child: node["node"] for node in tree["nodes"] for child in node["children"]}
    assert all(parent[step["node"]] in kept for step in tree["path"])


def test_an_id_with_spaces_and_slashes_travels_encoded(client: Any) -> None:
    for path in ("/v1/documents/red%2Fsecret%20one.txt", "/v1/documents/red/secret%20one.txt"):
        assert client.get(path, headers=header("red")).json()["text"] == SECRETS["red"]


# --- questions


@pytest.mark.parametrize("gold", GOLD[:3], ids=lambda gold: gold.id)
def test_a_question_is_answered_with_citations_that_the_stored_text_proves(gold: Any, client: Any) -> None:
    reply = ask(client, gold.question)
    assert reply.status_code == 200, reply.text
    told = reply.json()
    assert told["answered"] and set(gold.answers) <= set(told["answers"]), told["answers"]
    for citation in told["citations"]:
        stored = client.get(f"/v1/documents/{citation['doc_id']}", headers=header("all")).json()
        assert citation["quote"] == "".join(stored["text"][a:b] for a, b in citation["spans"])
    assert told["usage"]["calls"] > 1 and told["trace"]["format"] == 1


def test_a_stream_tells_each_node_before_its_children_and_ends_with_done(client: Any) -> None:
    body = {"question": GOLD[0].question}
    accept = header("all") | {"Accept": "text/event-stream"}
    with client.stream("POST", "/v1/ask", json=body, headers=accept) as stream:
        assert stream.status_code == 200 and stream.headers["content-type"].startswith("text/event-stream")
        events = events_of(stream)
    names = [name for name, _ in events]
    assert names[0] == "start" and names[-1] == "done" and names.count("done") == 1
    seen: set[str] = set()
    for name, data in events:
        if name == "node":
            assert data["parent"] is None or data["parent"] in seen
            seen.add(data["id"])
    done = events[-1][1]
    assert seen == {node["id"] for node in walk(done["trace"]["root"])}
    last = {data["id"]: data["state"] for name, data in events if name == "node"}
    assert set(last.values()) == {"done"}
    deltas = [data["delta"] for name, data in events if name == "answer"]
    assert "".join(deltas) == done["answer"] and len(deltas) > 1, "it is heard while it is written"
    assert any(name == "evidence" and data["passages"] for name, data in events)


def walk(node: dict[str, Any]) -> Any:
    yield node
    for child in node["children"]:
        yield from walk(child)


def test_a_question_nobody_can_answer_says_so_instead_of_guessing(client: Any) -> None:
    told = ask(client, "What colour is the moon's favourite hat?").json()
    assert not told["answered"] and told["answer"].startswith("Not answered")


def test_the_openai_client_gets_grounded_answers_by_changing_a_base_url(server: str) -> None:
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="sr-all", max_retries=0)
    assert "sproutrag" in [model.id for model in client.models.list()]
    asked: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": GOLD[0].question}]
    whole = client.chat.completions.create(model="sproutrag", messages=asked)
    content = whole.choices[0].message.content or ""
    assert GOLD[0].answers[0] in content and "Sources:\n[1] " in content
    assert whole.usage and whole.usage.prompt_tokens > 0
    parts = client.chat.completions.create(
        model="sproutrag", messages=asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(parts)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == content
    assert chunks[-1].usage and chunks[-2].choices[0].finish_reason == "stop"
    with pytest.raises(openai.NotFoundError, match="No such model"):
        client.chat.completions.create(model="gpt-5", messages=asked)


# --- refusals


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"\xff\xfe\x00", 400),
        (b"[" * 50_000, 400),
        (b'{"query": "' + b"x" * 200_000 + b'"}', 413),
        (b'{"query": ""}', 422),
        (b'{"query": "x", "k": 0}', 422),
        (b'{"query": "x", "k": 101}', 422),
        (b'{"query": "x", "k": 1e999}', 422),
        (b'{"query": "x", "kk": 1}', 422),
        (b'{"query": "x", "mode": "magic"}', 422),
        (b'{"query": "x", "where": "year >"}', 422),
        (b'{"query": "x", "snapshot": 99}', 404),
        (b'{"query": "x", "doc": "nowhere"}', 404),
        (b'{"query": "\\ud800 lone"}', 422),
        (b'{"query": "' + b"y" * 5_000 + b'"}', 422),
    ],
)
def test_what_does_not_fit_is_refused_with_what_where_and_next(body: bytes, status: int, client: Any) -> None:
    reply = client.post(
        "/v1/search", content=body, headers=header("all") | {"Content-Type": "application/json"}
    )
    assert reply.status_code == status, reply.text
    told = reply.json()
    assert reply.headers["content-type"] == "application/problem+json"
    assert told["status"] == status and told["detail"] and told["next"]
    assert reply.headers["x-request-id"] == told["request_id"]
    assert "Traceback" not in reply.text and "/tmp/" not in reply.text


def test_a_body_that_trickles_in_is_given_up_after_its_time(server: str) -> None:
    def slowly() -> Any:
        for _ in range(8):
            yield b" "
            time.sleep(0.5)

    reply = httpx2.post(f"{server}/v1/search", content=slowly(), headers=header("all"), timeout=30)
    assert reply.status_code == 408 and reply.json()["next"]


def test_a_key_asks_no_more_questions_at_once_than_it_may(client: Any) -> None:
    statuses: list[int] = []

    def one() -> None:
        reply = ask(client, GOLD[1].question, key="one")
        statuses.append(reply.status_code)
        if reply.status_code == 429:
            assert int(reply.headers["retry-after"]) >= 1

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 429 in statuses and 200 in statuses
    assert ask(client, GOLD[1].question, key="one").status_code == 200, "the places were given back"


# --- who may see what


@pytest.mark.parametrize("key", ["", "sr-wrong", "old", "Bearer", "all"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"), ("GET", "/page/app.js"), ("GET", "/healthz"), ("GET", "/readyz"),
        ("GET", "/openapi.json"),
        ("POST", "/v1/search"), ("POST", "/v1/ask"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
        ("GET", "/v1/snapshots"), ("GET", "/v1/documents/x"), ("GET", "/v1/trees/x"), ("GET", "/metrics"),
        ("GET", "/v1/"), ("GET", "/docs"), ("POST", "/v1/search/"),
    ],
)  # fmt: skip
def test_only_declared_paths_pass_without_a_valid_key(method: str, path: str, key: str, client: Any) -> None:
    status = client.request(method, path, headers=header(key)).status_code
    is_open = path in ("/", "/page/app.js", "/healthz", "/readyz", "/openapi.json")
    assert (status == 200) if is_open else (status != 401 if key == "all" else status == 401)


def test_a_tenant_cannot_tell_anothers_document_from_one_that_never_was(client: Any) -> None:
    for path in ("/v1/documents/{}", "/v1/trees/{}"):
        replies = [
            client.get(path.format(doc), headers=header("red"))
            for doc in ("blue%2Fsecret%20one.txt", "blue%2Fsecret%20two.txt")
        ]
        assert [reply.status_code for reply in replies] == [404, 404]
        first, second = ({k: v for k, v in r.json().items() if k not in ("request_id",)} for r in replies)
        assert first == second
    bodies = [{"query": "vault", "doc": doc} for doc in ("blue/secret one.txt", "blue/secret two.txt")]
    statuses = [client.post("/v1/search", json=b, headers=header("red")).status_code for b in bodies]
    assert statuses == [404, 404]
    assert client.get("/metrics", headers=header("red")).status_code == 404


def test_no_filter_of_a_request_reaches_out_of_its_tenant(client: Any) -> None:
    for where in (
        "tenant = 'blue'",
        "tenant = 'red') OR (tenant = 'blue'",
        "NOT tenant = 'red'",
        "true = true",
    ):
        reply = client.post(
            "/v1/search", json={"query": "vault cobalt", "where": where}, headers=header("red")
        )
        assert "cobalt" not in reply.text and reply.status_code in (200, 422)


def test_mixed_questions_of_two_tenants_never_show_the_others_text(client: Any) -> None:
    mixed: list[tuple[str, str]] = []

    def one(key: str, other: str) -> None:
        accept = header(key) | {"Accept": "text/event-stream"}
        for _ in range(5):
            body = {"question": "What opens the vault of Redmoor and of Blueford?"}
            with client.stream("POST", "/v1/ask", json=body, headers=accept) as stream:
                mixed.append((other, json.dumps(events_of(stream))))

    threads = [
        threading.Thread(target=one, args=pair) for pair in (("red", "cobalt"), ("blue", "heliotrope"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mixed) == 10
    assert not [told for other, told in mixed if other in told]


# --- watching it


def test_metrics_show_what_was_asked_and_nothing_is_open_when_all_is_done(client: Any) -> None:
    """Ray exports what a process counted some seconds later."""
    ask(client, GOLD[2].question)
    deadline = time.monotonic() + 40
    while (told := metrics_of(client)).get("ray_sproutrag_open_questions") != {0.0}:
        assert time.monotonic() < deadline, told.get("ray_sproutrag_open_questions")
        time.sleep(1)
    wanted = ("llm_calls_total", "request_seconds_bucket", "snapshot_age_seconds", "stage_seconds_count")
    assert not [name for name in wanted if f"ray_sproutrag_{name}" not in told]


def metrics_of(client: Any) -> dict[str, set[float]]:
    lines = client.get("/metrics", headers=header("all")).text.splitlines()
    found: dict[str, set[float]] = {}
    for line in lines:
        if not line.startswith("#"):
            found.setdefault(line.split("{")[0], set()).add(float(line.rsplit(" ", 1)[1]))
    return found
