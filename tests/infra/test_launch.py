"""The nightly launcher against a server that speaks the Kubernetes API as far as it asks."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.infra.manifests import KUBERAY, built

sys.path.insert(0, str(KUBERAY / "base"))
import launch

pytestmark = pytest.mark.timeout(20)  # who waits for an end that never comes
PATH = "/apis/ray.io/v1/namespaces/corpora/rayjobs"


class Kubernetes(BaseHTTPRequestHandler):
    """Knows the template, keeps what is created, tells one status of it after the other."""

    template: dict[str, Any]
    created: list[dict[str, Any]]
    statuses: list[dict[str, Any] | int]  # an int is an HTTP error
    tokens: list[str]

    def do_GET(self) -> None:
        if self.path == f"{PATH}/sproutrag-index":
            self.tell(self.template)
        else:
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            self.send_error(status) if type(status) is int else self.tell({"status": status})

    def do_POST(self) -> None:
        self.created.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.tell(self.created[-1])

    def tell(self, value: dict[str, Any]) -> None:
        self.tokens.append(self.headers["Authorization"])
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def kubernetes(statuses: list[dict[str, Any] | int]) -> Iterator[tuple[str, type[Kubernetes]]]:
    [template] = [o for o in built("base") if o["metadata"]["name"] == launch.TEMPLATE]
    grown = template | {"status": {"jobDeploymentStatus": "Suspended"}}
    grown["metadata"] = template["metadata"] | {"uid": "t", "resourceVersion": "7"}
    known = {"template": grown, "created": [], "statuses": statuses, "tokens": []}
    handler = type("Handler", (Kubernetes,), known)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


def launched(tmp_path: Path, statuses: list[dict[str, Any] | int]) -> tuple[int, type[Kubernetes]]:
    (tmp_path / "namespace").write_text("corpora")
    (tmp_path / "token").write_text("t0\n")
    with kubernetes(statuses) as (server, seen):
        jobs = launch.RayJobs(server, tmp_path)
        return launch.launch(jobs, job="sproutrag-nightly-index-29", uid="u1", look_every_s=0.001), seen


def test_the_night_is_a_copy_that_runs_and_goes_with_its_launcher(tmp_path: Path) -> None:
    status, seen = launched(tmp_path, [{}, {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}])
    [made] = seen.created
    assert status == 0 and set(seen.tokens) == {"Bearer t0"}
    assert made["spec"] == seen.template["spec"] | {"suspend": False}
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert made["metadata"]["name"] == "sproutrag-nightly-index-29-ray", "its submitter has this name too"
    assert "uid" not in made["metadata"]


@pytest.mark.parametrize("end", ["Failed", "ValidationFailed"])
def test_a_failed_run_does_not_wait_for_the_deadline(tmp_path: Path, end: str) -> None:
    told = {"jobDeploymentStatus": end, "jobStatus": "FAILED", "message": "exit code 1"}
    retried = {"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"}
    assert launched(tmp_path, [retried, {"jobDeploymentStatus": "Running"}, told])[0] == 1


def test_an_api_server_that_is_away_for_a_while_ends_nothing(tmp_path: Path) -> None:
    done = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
    assert launched(tmp_path, [{"jobDeploymentStatus": "Running"}, 503, 500, done])[0] == 0


def test_a_night_whose_rayjob_was_deleted_ends_at_once(tmp_path: Path) -> None:
    """And not with the launcher's deadline, eleven hours later."""
    assert launched(tmp_path, [{"jobDeploymentStatus": "Running"}, 404])[0] == 1


def test_a_job_that_was_stopped_by_hand_has_not_succeeded(tmp_path: Path) -> None:
    assert launched(tmp_path, [{"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}])[0] == 1


def test_the_launcher_may_do_what_it_does_and_is_told_who_it_is() -> None:
    objects = {(o["kind"], o["metadata"]["name"]): o for o in built("base")}
    [rule] = objects["Role", "sproutrag-launcher"]["rules"]
    assert rule == {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get"]}
    pod = objects["CronJob", "sproutrag-nightly-index"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert {e["name"] for e in container["env"]} == {"JOB_NAME", "JOB_UID"}
    assert container["command"] == ["python", f"{container['volumeMounts'][0]['mountPath']}/launch.py"]
    assert "launch.py" in objects["ConfigMap", "sproutrag-launcher"]["data"]
