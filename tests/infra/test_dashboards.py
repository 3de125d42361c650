"""Every query of a dashboard or an alert is PromQL over metrics and labels that are really exported."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import ray.serve

from serve.door import route_of
from serve.engines import PREFIX
from serve.ingress import PROBLEMS
from serve.metrics import MEANINGS, NAMES
from tests.infra.manifests import ROOT, read

FOLDER = ROOT / "infra" / "dashboards"
# What Ray Serve 2.60.0 exported, with its labels, in a run of an application. Ours came out as ray_<name>.
SERVES_OWN = {
    "serve_deployment_replica_healthy": {"application", "deployment", "replica"},
    "serve_deployment_queued_queries": {"application", "deployment", "handle"},
    "serve_replica_processing_queries": {"application", "deployment", "replica"},
    "serve_autoscaling_target_replicas": {"application", "deployment"},
}
EVERYWHERE = {"NodeAddress", "WorkerId", "SessionName"}  # labels that Ray adds to each


def panels() -> list[dict[str, Any]]:
    return json.loads((FOLDER / "sproutrag.json").read_text())["panels"]


def rules() -> list[dict[str, Any]]:
    [file] = read(FOLDER / "alerts.yaml")
    return [rule for group in file["groups"] for rule in group["rules"]]


def queries() -> list[Any]:
    shown = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    watched = [(rule["alert"], rule["expr"]) for rule in rules()]
    both = [(place, query.replace("$__rate_interval", "5m")) for place, query in shown + watched]
    return [pytest.param(query, id=place) for place, query in both]


@cache
def exported() -> dict[str, set[str]]:
    """Name -> labels, of ours and of Ray Serve's own."""
    histograms = {name for kind, named in MEANINGS.items() if kind.__name__ == "Histogram" for name in named}
    found = {f"ray_{name}": labels | EVERYWHERE for name, labels in SERVES_OWN.items()}
    for name, tags in NAMES.items():
        parts = {"_bucket": {"le"}, "_sum": set(), "_count": set()} if name in histograms else {"": set()}
        found |= {f"ray_{name}{part}": {*tags, *more, *EVERYWHERE} for part, more in parts.items()}
    return found


def nodes(query: str) -> list[promql_parser.Expr]:
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(query), found.append)
    return found


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """(metric, labels that are matched) of each."""
    for each in nodes(query):
        if type(each) is promql_parser.VectorSelector:
            yield each.name, {matcher.name for matcher in each.matchers.matchers}


def made_labels(query: str) -> set[str]:
    """By count_values, whose result has one."""
    made = [e.param.val for e in nodes(query) if type(e) is promql_parser.AggregateExpr and e.param]
    return {label for label in made if type(label) is str}


def grouped(query: str) -> set[str]:
    groups = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query)
    return {label.strip() for group in groups for label in group.split(",")}


def asks_for_what_is_exported(query: str) -> None:
    found = list(selectors(query))
    assert found
    for metric, matched in found:
        assert metric in exported(), f"nothing exports {metric}"
        wanted = matched | (grouped(query) - made_labels(query))
        assert wanted <= exported()[metric], f"{metric} has no {wanted - exported()[metric]}"


@cache
def told() -> dict[str, set[str]]:
    """Label -> the values that serve/ writes down; what it computes (status, route, prompt) is not here."""
    found: dict[str, set[str]] = {"reason": {str(status) for status in PROBLEMS}}
    for path in (ROOT / "serve").glob("*.py"):
        for call in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in ("count", "observe", "gauge", "change"):
                for tag in call.keywords:
                    if tag.arg and isinstance(tag.value, ast.Constant):
                        found.setdefault(tag.arg, set()).add(tag.value.value)
    return found


def can_match(label: str, value: str) -> bool:
    if label == "route":
        return route_of(value) == value
    if label == "deployment":
        return value in ("Ingress", "Retriever") or value == f"{PREFIX}.*"
    return label == "status" or value in told()[label]


@pytest.mark.parametrize("query", queries())
def test_a_query_matches_values_that_are_written(query: str) -> None:
    for each in nodes(query):
        if type(each) is promql_parser.VectorSelector:
            for matcher in each.matchers.matchers:
                for value in matcher.value.split("|"):
                    assert can_match(matcher.name, value), f"{matcher.name} is never {value!r}"


def test_a_value_that_is_never_written_is_found() -> None:
    assert not can_match("route", "/v1/serach") and not can_match("kind", "waste")
    assert not can_match("reason", "430") and can_match("reason", "429")


@pytest.mark.parametrize("query", queries())
def test_a_query_asks_for_metrics_and_labels_that_are_exported(query: str) -> None:
    asks_for_what_is_exported(query)


@pytest.mark.parametrize("name", SERVES_OWN)
def test_ray_serve_still_names_its_metrics_so(name: str) -> None:
    folder = Path(ray.serve.__file__).parent / "_private"
    sources = (path.read_text() for path in folder.glob("*.py"))
    assert any(f'"{name}"' in source for source in sources), "look at what this version of Ray exports"


def test_a_metric_that_nothing_exports_is_found() -> None:
    with pytest.raises(AssertionError, match="nothing exports ray_sproutrag_no_such_total"):
        asks_for_what_is_exported("rate(ray_sproutrag_no_such_total[5m])")
    with pytest.raises(AssertionError, match=r"has no .*colour"):
        asks_for_what_is_exported("sum by (colour) (ray_sproutrag_snapshot_id)")


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    assert not [name for name in NAMES if f"ray_{name}" not in shown]


def test_panels_do_not_overlap_and_have_a_unit() -> None:
    places = [panel["gridPos"] for panel in panels()]
    spans = [(range(p["x"], p["x"] + p["w"]), range(p["y"], p["y"] + p["h"])) for p in places]
    cells = [(x, y) for across, down in spans for x in across for y in down]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels())
    assert len({panel["id"] for panel in panels()}) == len(places)


def test_an_alert_says_what_to_look_at() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert "." in rule["annotations"]["summary"], f"{rule['alert']}: what is wrong, and where to look"


def test_an_alert_about_what_is_missing_also_sees_that_nothing_is_exported() -> None:
    """A sum over no series is no series, and compares to nothing."""
    for rule in rules():
        if rule["expr"].endswith("< 1"):
            assert "or vector(0)" in rule["expr"], rule["alert"]
