"""Images, secrets, accounts, volumes that manifests name exist; pods hold no right that they do not need."""

import re
from typing import Any

import kubernetes_validate
import pytest

from tests.infra.manifests import FOLDERS, KUBERAY, KUBERNETES, ROOT, Manifest, built, pods, read

DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text()
README = (ROOT / "infra" / "README.md").read_text()
[VERSION] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
EVERY = [pytest.param(name, id=name) for name in FOLDERS]
RAY_POD = {"app.kubernetes.io/part-of": "sproutrag", "ray.io/is-ray-node": "yes"}


def named(objects: list[Manifest], kind: str) -> set[str]:
    return {o["metadata"]["name"] for o in objects if o["kind"] == kind}


def values_of(key: str, value: Any) -> list[Any]:
    """All values under `key`, however deep."""
    if isinstance(value, list):
        return [found for inner in value for found in values_of(key, inner)]
    if not isinstance(value, dict):
        return []
    here = [value[key]] if key in value else []
    return here + [found for inner in value.values() for found in values_of(key, inner)]


def secrets(objects: list[Manifest]) -> set[str]:
    mounted = [s["secretName"] for s in values_of("secret", objects) if isinstance(s, dict)]
    read = [s["name"] for key in ("secretRef", "secretKeyRef") for s in values_of(key, objects)]
    return {*mounted, *read}


@pytest.mark.parametrize("folder", EVERY)
def test_what_a_pod_names_exists(folder: str) -> None:
    objects = built(folder)
    for pod in (template["spec"] for template in pods(objects)):
        account = pod.get("serviceAccountName")
        assert account in named(objects, "ServiceAccount") or pod["automountServiceAccountToken"] is False
        mounted = {m["name"] for c in pod["containers"] for m in c.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        claims = {c["claimName"] for c in values_of("persistentVolumeClaim", pod)}
        assert claims <= named(objects, "PersistentVolumeClaim")
        assert {m["name"] for m in values_of("configMap", pod)} <= named(objects, "ConfigMap")
    for secret in secrets(objects):
        assert f"`{secret}`" in README, f"infra/README.md does not say how to make {secret}"


@pytest.mark.parametrize("folder", EVERY)
def test_images_are_targets_of_the_dockerfile_and_fit_the_node(folder: str) -> None:
    for pod in pods(built(folder)):
        for container in pod["spec"]["containers"]:
            [(target, tag)] = re.findall(r"^registry\.example/sproutrag-(\w+):([\d.]+)$", container["image"])
            assert f" AS {target}\n" in DOCKERFILE and tag == VERSION
            has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
            assert has_gpu == (target == "gpu"), f"{folder}: {container['name']}"


def test_a_tag_set_by_kustomize_leaves_gpu_pods_their_own_image() -> None:
    """`images:` goes by name and replaces whatever tag is there, so a target must not be in the tag."""
    places = [ROOT / "infra" / "README.md", ROOT / "infra" / "Dockerfile", *KUBERAY.rglob("*.yaml")]
    images = set(re.findall(r"registry\.example/[\w:.-]*\w", "".join(p.read_text() for p in places)))
    assert images <= {
        f"registry.example/sproutrag-{t}{v}" for t in ("cpu", "gpu") for v in ("", f":{VERSION}")
    }


@pytest.mark.parametrize("folder", EVERY)
def test_no_pod_is_root_and_only_the_head_and_the_launcher_talk_to_kubernetes(folder: str) -> None:
    for template in pods(built(folder)):
        pod, [container] = template["spec"], template["spec"]["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        talks = pod.get("automountServiceAccountToken", True)
        assert talks == (container["name"] in ("ray-head", "launch")), container["name"]


def admitted(policy: Manifest, port: int) -> list[Manifest]:
    """The peers that a policy lets in to a port; {} is everybody."""
    anything = [{"port": port}]
    rules = [r for r in policy["spec"]["ingress"] if port in values_of("port", r.get("ports", anything))]
    return [peer for rule in rules for peer in rule.get("from", [{}])]


@pytest.mark.parametrize("folder", EVERY)
def test_only_the_endpoints_port_is_open_and_submitters_reach_the_head(folder: str) -> None:
    objects = built(folder)
    [policy] = [o for o in objects if o["kind"] == "NetworkPolicy"]
    ray_pods, submitters = {"podSelector": {"matchLabels": RAY_POD}}, "sproutrag.example/submits"
    assert policy["spec"]["podSelector"]["matchLabels"] == RAY_POD
    assert {} in admitted(policy, 8000)
    for inside in (6379, 8080, 8265, 10001, 52365):
        assert {} not in admitted(policy, inside)
    assert admitted(policy, 6379) == admitted(policy, 10001) == [ray_pods]
    assert {"podSelector": {"matchLabels": {submitters: "true"}}} in admitted(policy, 8265)
    for template in pods(objects):
        name = template["spec"]["containers"][0]["name"]
        labels = template.get("metadata", {}).get("labels", {})
        assert (labels.get(submitters) == "true") == (name == "submit")
        assert (labels.get("app.kubernetes.io/part-of") == "sproutrag") == name.startswith("ray-")


@pytest.mark.parametrize("folder", EVERY)
def test_every_ray_cluster_wants_a_token_and_keeps_work_off_its_head(folder: str) -> None:
    clusters = [*values_of("rayClusterConfig", built(folder)), *values_of("rayClusterSpec", built(folder))]
    assert len(clusters) >= 3
    for cluster in clusters:
        assert cluster["authOptions"]["mode"] == "token"
        assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        assert cluster["autoscalerOptions"]["version"] == "v2"


def test_the_pod_that_fills_the_claim_fits_and_finds_it() -> None:
    [pod] = read(KUBERAY / "fill.yaml")
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    [claim] = [c["claimName"] for c in values_of("persistentVolumeClaim", pod)]
    assert claim in named(built("base"), "PersistentVolumeClaim")
    assert f"{pod['metadata']['name']}:/data" in README


def lines_of(target: str) -> str:
    """A stage of the Dockerfile, without comments."""
    stage = re.split(r"^FROM ", DOCKERFILE, flags=re.M)
    [found] = [text for text in stage if text.split("\n")[0].endswith(f" AS {target}")]
    return re.sub(r"^#.*\n", "", found, flags=re.M)


def test_the_image_copies_what_is_there_and_is_not_kept_out() -> None:
    copied = {w for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.M) for w in line.split()}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*", "only what is named enters the build: no keys, no indices"
    assert {f"!{name}" for name in copied} == {line for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    assert {"requirements.lock", "sproutrag", "pipelines", "serve"} <= copied


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_image_installs_what_is_locked_and_does_not_run_as_root(target: str) -> None:
    lines = lines_of(target)
    assert re.findall(r"^USER (\w+)$", lines, re.M) == ["1000"] and "--uid 1000" in lines_of("base")
    installs = re.findall(r"pip install [^&\n]*", lines)
    assert all("requirements.lock" in i or "gpu.lock" in i or i.split()[-1] == "." for i in installs)
    assert not re.search(r"password|token|secret(?!,id=pip)", lines, re.I)


def test_versions_agree_with_the_lock() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    [vllm] = re.findall(r'"vllm==([\d.]+)"', DOCKERFILE)
    assert f"\nvllm-cpu=={vllm}\n" in lock
    manifests = "".join(path.read_text() for path in KUBERAY.rglob("*.yaml"))
    [ray] = set(re.findall(r'rayVersion: "([\d.]+)"', manifests))
    assert f"\nray=={ray}\n" in lock
    [python] = re.findall(r"^FROM python:(\d+\.\d+)-", DOCKERFILE, re.M)
    assert f"for Python {python} " in lock
