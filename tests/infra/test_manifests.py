"""The manifests fit the schemas of Kubernetes and KubeRay, and Ray takes the applications in them."""

import ast
import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import tyro
from ray.serve.schema import ServeDeploySchema

from serve.settings import Settings, documented, read_settings
from sproutrag.cli import Command
from tests.infra.manifests import FOLDERS, KUBERNETES, ROOT, Manifest, built, entrypoints, load, pods, read

CRDS = [parent / "shared" / "kuberay-crds" for parent in ROOT.parents[:2]]
CRD_FOLDER = next((folder for folder in CRDS if folder.is_dir()), None)
TOLERANT = " || test $? -eq 3"  # some inputs were set aside
EVERY = [pytest.param(name, id=name) for name in FOLDERS]


def strict(schema: Any) -> Any:
    """The CRD's schema with unknown fields refused where Kubernetes would silently drop them."""
    if isinstance(schema, dict):
        closed = {key: strict(value) for key, value in schema.items()}
        is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
        if "properties" in schema and isinstance(schema["properties"], dict) and not is_open:
            closed["additionalProperties"] = False
        return closed
    return [strict(item) for item in schema] if isinstance(schema, list) else schema


@cache
def crd_validator(kind: str) -> jsonschema.Draft202012Validator:
    assert CRD_FOLDER
    [crd] = read(CRD_FOLDER / f"{kind.lower()}s.yaml")
    [version] = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


@cache
def service(folder: str) -> Manifest:
    [found] = [o for o in built(folder) if o["kind"] == "RayService"]
    return found


def serve_config(folder: str) -> Manifest:
    return load(service(folder)["spec"]["serveConfigV2"])[0]


@pytest.mark.skipif(CRD_FOLDER is None, reason="the KubeRay CRDs are not beside the checkout")
@pytest.mark.parametrize("folder", EVERY)
def test_ray_objects_fit_kuberays_schemas_without_unknown_fields(folder: str) -> None:
    ours = [o for o in built(folder) if o["apiVersion"] == "ray.io/v1"]
    assert {o["kind"] for o in ours} >= {"RayService", "RayJob"}
    for each in ours:
        crd_validator(each["kind"]).validate(each)


@pytest.mark.skipif(CRD_FOLDER is None, reason="the KubeRay CRDs are not beside the checkout")
def test_a_misspelt_field_is_found() -> None:
    broken = built("base")
    for each in broken:
        if each["kind"] == "RayService":
            each["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["serviceAcountName"] = "x"
            with pytest.raises(jsonschema.ValidationError, match="serviceAcountName"):
                crd_validator("RayService").validate(each)


@pytest.mark.parametrize("folder", EVERY)
def test_other_objects_fit_kubernetes_schemas(folder: str) -> None:
    for each in built(folder):
        if each["apiVersion"] != "ray.io/v1":
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize("folder", EVERY)
def test_names_are_unique_and_short_enough_for_ray(folder: str) -> None:
    names = [(o["kind"], o["metadata"]["name"]) for o in built(folder)]
    assert len(names) == len(set(names))
    assert all(len(name) <= 31 for kind, name in names if kind in ("CronJob", "RayJob", "RayCronJob"))


@pytest.mark.parametrize("folder", EVERY)
def test_ray_takes_the_applications_and_their_settings_exist(folder: str) -> None:
    config = serve_config(folder)
    ServeDeploySchema.model_validate(config)
    for app in config["applications"]:
        module, name = app["import_path"].split(":")
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        [builder] = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == name]
        assert [a.arg for a in builder.args.args] == ["args"], "Serve passes one dict"
        assert set(app["args"]) <= set(Settings.model_fields)
        read_settings(**app["args"])
    assert len({app["args"]["llm"] for app in config["applications"]}) == 1, "both must name one model"


@pytest.mark.parametrize("folder", EVERY)
def test_pods_outlive_the_longest_request(folder: str) -> None:
    config = serve_config(folder)
    settings = [read_settings(**app["args"]) for app in config["applications"]]
    longest = max(max(s.deadline_s, s.llm_deadline_s, s.search_deadline_s) for s in settings)
    assert config["http_options"]["request_timeout_s"] > longest
    for pod in pods(service(folder)):
        assert pod["spec"]["terminationGracePeriodSeconds"] > longest
    kept = service(folder)["spec"]["rayClusterDeletionDelaySeconds"]
    assert kept > config["http_options"]["request_timeout_s"], "the old cluster ends its requests"


@pytest.mark.parametrize("folder", EVERY)
def test_a_replica_finds_room_on_a_worker(folder: str) -> None:
    groups = service(folder)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    rooms = [g["template"]["spec"]["containers"][0]["resources"]["limits"] for g in groups]
    for app in serve_config(folder)["applications"]:
        settings = read_settings(**app["args"])
        on_gpu = app["name"] == "llm" and settings.llm_device == "cuda"
        gpus = settings.tensor_parallel if on_gpu else 0
        cpus = 2 if app["name"] == "llm" else settings.retriever_cpus  # the engine's replica and its bundle
        fits = [r for r in rooms if int(r.get("nvidia.com/gpu", 0)) >= gpus and float(r["cpu"]) >= cpus]
        assert fits, f"{app['name']}: no worker has {cpus} CPUs and {gpus} GPUs"


@pytest.mark.parametrize("folder", EVERY)
def test_every_replica_reserves_a_part_of_a_cpu_which_the_head_has_not(folder: str) -> None:
    """Seen on a Ray with a head of no CPUs: of four replicas with num_cpus 0 one ran there, with 0.1 none."""
    [endpoint, _] = serve_config(folder)["applications"]
    reserved = {d["name"]: d["ray_actor_options"]["num_cpus"] for d in endpoint["deployments"]}
    reserved |= {"Retriever": read_settings(**endpoint["args"]).retriever_cpus}
    sources = "".join(path.read_text() for path in (ROOT / "serve").glob("*.py"))
    assert set(reserved) == set(re.findall(r'name="(\w+)",\n +autoscaling_config', sources))
    assert min(reserved.values()) > 0


def test_the_service_serves_what_the_deploy_file_says() -> None:
    assert serve_config("base") == read(ROOT / "infra" / "serve.yaml")[0]


def test_overlays_change_only_settings_of_the_applications() -> None:
    base = serve_config("base")
    for folder in FOLDERS:
        other = serve_config(folder)
        assert {k: v for k, v in other.items() if k != "applications"} == {
            k: v for k, v in base.items() if k != "applications"
        }
        for ours, theirs in zip(base["applications"], other["applications"], strict=True):
            assert ours | {"args": theirs["args"]} == theirs


def test_the_settings_file_describes_every_option() -> None:
    assert (ROOT / "infra" / "sproutrag.yaml").read_text() == documented(), "run python -m serve.settings"


def written_in_the_readme() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "infra" / "README.md").read_text(), re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return [re.split(r" [>|#]", line)[0] for line in lines if line.startswith("sproutrag ")]


def taken(line: str) -> None:
    """Raises SystemExit for a flag that does not exist."""
    program, *arguments = shlex.split(line)
    if program == "sh":
        return taken(arguments[1].removesuffix(TOLERANT))
    assert program == "sproutrag"
    tyro.cli(Command, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))


@pytest.mark.parametrize("folder", EVERY)
def test_every_command_is_one_that_the_command_line_takes(folder: str) -> None:
    commands = list(entrypoints(built(folder)))
    assert len(commands) >= 2
    for line in commands:
        taken(line)


def test_commands_in_the_readme_exist() -> None:
    assert written_in_the_readme()
    for line in written_in_the_readme():
        taken(line)


def test_a_flag_that_does_not_exist_is_found() -> None:
    with pytest.raises(SystemExit):
        taken("sproutrag index a --db b --no-such-flag")


@pytest.mark.parametrize(("status", "ended"), [(0, 0), (3, 0), (1, 1), (2, 1), (130, 1)])
def test_a_night_that_set_inputs_aside_has_not_failed(status: int, ended: int, tmp_path: Path) -> None:
    """A file that cannot be read is set aside every night; each would end FAILED, after a second cluster."""
    [index] = [line for line in entrypoints(built("base")) if "sproutrag index" in line]
    program = tmp_path / "sproutrag"
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    sent = shlex.join(shlex.split(index))  # what `ray job submit` makes of it
    run = subprocess.run(sent, shell=True, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert run.returncode == ended


def test_both_nightly_ways_run_the_same_command() -> None:
    built_ones = [o for o in built("overlays/raycronjob") if "spec" in o]
    objects = {(o["kind"], o["metadata"]["name"]): o["spec"] for o in built_ones}
    ours = objects["RayJob", "sproutrag-index"]
    theirs = objects["RayCronJob", "sproutrag-nightly-index"]
    assert ours == theirs["jobTemplate"] | {"suspend": True}
    cron = objects["CronJob", "sproutrag-nightly-index"]
    assert cron["suspend"] and cron["schedule"] == theirs["schedule"]
    attempts = ours["backoffLimit"] + 1
    outlasted = cron["jobTemplate"]["spec"]["activeDeadlineSeconds"]
    assert outlasted > attempts * ours["activeDeadlineSeconds"], "the launcher sees the end"
