"""Every metric and label that a dashboard or an alert asks for is one that is really exported."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray.serve
import yaml

from serve.metrics import MEANINGS, NAMES
from tests.infra.manifests import ROOT

FOLDER = ROOT / "infra" / "dashboards"
METRIC = re.compile(r"\bray_(\w+)(?:\{([^}]*)\})?")
ADDED = {"le", "snapshot"}  # of histograms; made by count_values


def queries() -> Iterator[tuple[str, str]]:
    for panel in json.loads((FOLDER / "sproutrag.json").read_text())["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


def exported() -> dict[str, set[str] | None]:
    """Name -> labels; None: of Ray Serve itself, whose source names them."""
    histograms = {name for kind, named in MEANINGS.items() if kind.__name__ == "Histogram" for name in named}
    ours: dict[str, set[str] | None] = {}
    for name, tags in NAMES.items():
        suffixes = ("_bucket", "_sum", "_count") if name in histograms else ("",)
        ours |= {name + suffix: set(tags) for suffix in suffixes}
    return ours


def serves_own() -> str:
    folder = Path(ray.serve.__file__).parent / "_private"
    return "\n".join(path.read_text() for path in folder.rglob("*.py"))


@pytest.mark.parametrize(("place", "query"), list(queries()))
def test_metrics_and_labels_of_a_query_are_exported(place: str, query: str) -> None:
    found, ours = METRIC.findall(query), exported()
    assert found, f"{place}: asks for nothing of Ray's"
    labels = set(re.findall(r"by \(([^)]*)\)", query))
    grouped = {label.strip() for group in labels for label in group.split(",")} - ADDED
    for name, matchers in found:
        wanted = grouped | set(re.findall(r"(\w+)\s*[=!]", matchers))
        if name.startswith("serve_"):
            assert f'"{name}"' in serves_own(), f"{place}: Ray Serve exports no {name}"
            assert wanted <= {"deployment", "application", "replica"}
        else:
            assert name in ours, f"{place}: nothing exports {name}"
            assert wanted <= (ours[name] or set()), f"{place}: {name} has no {wanted}"


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = " ".join(query for _, query in list(queries()))
    assert not [name for name in NAMES if f"ray_{name}" not in shown]
