"""`sproutrag serve` as a process of its own, over a small index with tenants, with a simulated engine."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx2
import yaml

from sproutrag.documents import Document
from tests.qa.oracle import OURS, read_gold, read_jsonl

PATIENCE_S = 180.0
KEYS = {"all": "sr-all", "red": "sr-red", "blue": "sr-blue", "old": "sr-old", "one": "sr-one"}
MORE = {
    "red": {"where": "tenant = 'red'"},
    "blue": {"where": "tenant = 'blue'"},
    "old": {"not_after": "2020-01-01"},
    "one": {"concurrent": 1},
}
SECRETS = {
    "red": "The vault of Redmoor opens with heliotrope.",
    "blue": "The vault of Blueford opens with cobalt.",
}
GOLD = read_gold(OURS)


def documents() -> list[Document]:
    """The corpus of our plans, shared, and one secret of each tenant."""
    shared = [
        Document(row["doc_id"], row["text"], title=row["title"], metadata='{"tenant": "both"}')
        for row in read_jsonl(OURS / "corpus.jsonl")
    ]
    own = [
        Document(
            f"{name}/secret one.txt", text, title=f"Vault of {name}", metadata=json.dumps({"tenant": name})
        )
        for name, text in SECRETS.items()
    ]
    return shared + own


def write_keys(path: Path, names: dict[str, str] = KEYS) -> Path:
    entries: list[dict[str, Any]] = [
        {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()} | MORE.get(name, {})
        for name, key in names.items()
    ]
    path.write_text(yaml.safe_dump(entries))
    return path


def header(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS.get(name, name)}"} if name else {}


def wait_until_ready(url: str) -> None:
    for _ in range(int(PATIENCE_S)):
        if httpx2.get(f"{url}/readyz", timeout=30).status_code == 200:
            return
    raise AssertionError(httpx2.get(f"{url}/readyz", timeout=30).text)


def events_of(stream: Any) -> list[tuple[str, Any]]:
    """(event, data) of a whole stream."""
    return [(event.event, json.loads(event.data)) for event in httpx2.EventSource(stream)]
