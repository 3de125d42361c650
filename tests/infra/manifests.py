"""What kustomize would give to a cluster, as far as our folders use it.

That is: resources, components, JSON 6902 patches, ConfigMaps of files under their plain names.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

ROOT = Path(__file__).parents[2]
KUBERAY = ROOT / "infra" / "kuberay"
FOLDERS = ["base", "overlays/kind", "overlays/gpu-pool", "overlays/raycronjob", "components/gcs"]
KUBERNETES = "1.34"  # whose schemas
UNDERSTOOD = {"apiVersion", "kind", "resources", "components", "patches"}
UNDERSTOOD |= {"configMapGenerator", "generatorOptions"}
Manifest = dict[str, Any]


def built(folder: str) -> list[Manifest]:
    """All objects of a folder with a kustomization.yaml; of a component: the base with it."""
    below = built("base") if folder.startswith("components/") else []
    return applied(KUBERAY / folder, below)


def applied(folder: Path, objects: list[Manifest]) -> list[Manifest]:
    """`objects` and those of the folder, patched."""
    said = read(folder / "kustomization.yaml")[0]
    assert set(said) <= UNDERSTOOD, f"{folder}: this reader does not know {set(said) - UNDERSTOOD}"
    for name in said.get("resources", []):
        path = (folder / name).resolve()
        objects = objects + (applied(path, []) if path.is_dir() else deepcopy(read(path)))
    objects = objects + [config_map(folder, each) for each in said.get("configMapGenerator", [])]
    if "configMapGenerator" in said:
        assert said["generatorOptions"] == {"disableNameSuffixHash": True}
    for name in said.get("components", []):
        objects = applied((folder / name).resolve(), objects)
    for each in said.get("patches", []):
        change(objects, each)
    return objects


def change(objects: list[Manifest], patch: Manifest) -> None:
    kind, name = patch["target"]["kind"], patch["target"]["name"]
    [hit] = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    jsonpatch.apply_patch(hit, load(patch["patch"])[0], in_place=True)


def config_map(folder: Path, said: Manifest) -> Manifest:
    data = {name: (folder / name).read_text() for name in said["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": said["name"]}, "data": data}


def load(text: str) -> list[Any]:
    """libyaml: a CRD of 20,000 lines takes Python's own reader ten seconds."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


@cache
def read(path: Path) -> list[Any]:
    return load(path.read_text())


def pods(value: Any) -> Iterator[Manifest]:
    """Every pod template (metadata and spec) below a value."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


def entrypoints(objects: list[Manifest]) -> Iterator[str]:
    """The commands of RayJobs, and of those that a RayCronJob makes."""
    for each in objects:
        spec = each.get("spec", {})
        if each["kind"] in ("RayJob", "RayCronJob"):
            yield spec.get("jobTemplate", spec)["entrypoint"]
