import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve import keys
from serve.keys import Keyring, Tenant, new_key, read_keys
from serve.problems import Problem
from serve.settings import SettingsProblem
from sproutrag.where import WhereError


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def written(path: Path, *entries: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(list(entries)))
    return str(path)


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keyring:
    monkeypatch.setattr(keys, "LOOK_AGAIN_S", 0.0)
    path = written(
        tmp_path / "keys.yaml",
        {"name": "a", "sha256": digest("key a"), "where": "year > 2000", "concurrent": 3},
        {"name": "b", "sha256": digest("key b")},
        {"name": "old", "sha256": digest("key old"), "not_after": "2020-01-01"},
    )
    return Keyring(path, concurrent=8)


def test_a_key_is_its_tenant_with_its_own_limits(ring: Keyring) -> None:
    assert ring.who("Bearer key a") == Tenant("a", 3, "year > 2000")
    assert ring.who("bearer  key b ") == Tenant("b", 8, None)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic key a", "key a", "Bearer key old", "Bearer key a,key b"],
)
def test_anything_else_is_refused_without_saying_what_would_fit(header: str, ring: Keyring) -> None:
    with pytest.raises(Problem) as problem:
        ring.who(header)
    assert problem.value.status == 401 and problem.value.headers["WWW-Authenticate"] == "Bearer"
    assert "key a" not in str(vars(problem.value))


def test_keys_rotate_without_a_restart_and_a_broken_file_changes_nothing(ring: Keyring) -> None:
    path = Path(ring.path)
    path.write_text("- name: [")
    assert ring.who("Bearer key a").name == "a"
    path.unlink()
    assert ring.who("Bearer key a").name == "a"
    written(path, {"name": "new", "sha256": digest("key new")})
    assert ring.who("Bearer key new").name == "new"
    with pytest.raises(Problem):
        ring.who("Bearer key a")


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ([], "the list is empty"),
        ([{"name": "a", "sha256": "key a"}], r"0\.sha256"),
        ([{"name": "a", "sha256": digest("x"), "key": "x"}], r"0\.key"),
        ([{"name": "a", "sha256": digest("x"), "where": "year >"}], r"0\.where"),
        ([{"name": n, "sha256": digest("x")} for n in "ab"], "one key is there twice"),
    ],
)
def test_a_file_of_keys_that_makes_no_sense_is_refused_at_start(
    entries: list[dict[str, Any]], named: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsProblem, match=named):
        read_keys(written(tmp_path / "k.yaml", *entries))


def test_without_a_file_everybody_is_anonymous_and_a_sent_key_is_ignored() -> None:
    assert Keyring("", concurrent=8).who("Bearer whatever") == Tenant("anonymous", 8, None)


def test_a_new_key_fits_its_entry_and_is_not_in_it(tmp_path: Path) -> None:
    key, entry = new_key("alice")
    (tmp_path / "keys.yaml").write_text(entry)
    assert key not in entry
    assert Keyring(str(tmp_path / "keys.yaml"), concurrent=1).who(f"Bearer {key}").name == "alice"


@pytest.mark.parametrize("asked", ["a = 1) OR (a = 2", "') OR ('a' = 'a", "a = 1 OR", "a = 1 -- x"])
def test_a_requests_filter_cannot_reach_out_of_the_tenants(asked: str) -> None:
    with pytest.raises(WhereError):
        Tenant("a", 1, "year > 2000").narrowed(asked)


def test_both_filters_count() -> None:
    assert (
        Tenant("a", 1, "x = 1 OR y = 2").narrowed("z = 3 OR w = 4") == "(x = 1 OR y = 2) AND (z = 3 OR w = 4)"
    )
    assert Tenant("a", 1, "x = 1").narrowed(None) == "x = 1"
    assert Tenant("a", 1).narrowed("x = 1") == "x = 1"
    assert Tenant("a", 1).narrowed(None) is None
