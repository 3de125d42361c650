"""What kustomize would give to a cluster, as far as our overlays use it: resources and JSON 6902 patches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

ROOT = Path(__file__).parents[2]
KUBERAY = ROOT / "infra" / "kuberay"
OVERLAYS = ["base", "overlays/kind", "overlays/gpu-pool", "overlays/raycronjob"]
Manifest = dict[str, Any]


def built(folder: Path) -> list[Manifest]:
    """All objects of a folder with a kustomization.yaml."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(kustomization) <= {"apiVersion", "kind", "resources", "patches"}, "read no further than this"
    objects = [each for name in kustomization["resources"] for each in resource(folder / name)]
    for patch in kustomization.get("patches", []):
        wanted = patch["target"]
        hit = [
            o for o in objects if o["kind"] == wanted["kind"] and o["metadata"].get("name") == wanted["name"]
        ]
        assert len(hit) == 1, wanted
        jsonpatch.apply_patch(hit[0], yaml.safe_load(patch["patch"]), in_place=True)
    return objects


def resource(path: Path) -> list[Manifest]:
    return built(path.resolve()) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))


def with_inner(objects: list[Manifest]) -> Iterator[Manifest]:
    """The objects, and those that a ConfigMap holds for the launcher."""
    for each in objects:
        yield each
        if each["kind"] == "ConfigMap":
            yield from (yaml.safe_load(text) for text in each["data"].values())


def pods(value: Any) -> Iterator[Manifest]:
    """Every pod spec below a value."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


def entrypoints(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "entrypoint" in value:
            yield value["entrypoint"]
        for inner in value.values():
            yield from entrypoints(inner)
