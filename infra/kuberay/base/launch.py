"""Starts tonight's RayJob from the suspended one and waits for its end: what the CronJob's pod runs.

Standard library only, mounted out of a ConfigMap. The new job belongs to the launcher's Job, so Kubernetes
deletes it with that (`successfulJobsHistoryLimit`).
"""

import http.client
import json
import os
import ssl
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEMPLATE = "sproutrag-index"
ENDED = {"Complete", "Failed", "ValidationFailed"}  # jobDeploymentStatus; Retrying is not an end


@dataclass(frozen=True)
class RayJobs:
    """The RayJobs of the pod's own namespace. account: where Kubernetes mounts token and certificate."""

    server: str
    account: Path

    def get(self, name: str) -> dict[str, Any]:
        return self.call("GET", f"/{name}")

    def create(self, job: dict[str, Any]) -> dict[str, Any]:
        return self.call("POST", "", json.dumps(job).encode())

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """The token is read each time: Kubernetes replaces it every hour."""
        namespace = (self.account / "namespace").read_text().strip()
        url = f"{self.server}/apis/ray.io/v1/namespaces/{namespace}/rayjobs{path}"
        token = (self.account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(url, data=body, headers=headers, method=method)
        certificate = self.account / "ca.crt"
        trusted = ssl.create_default_context(cafile=certificate) if certificate.exists() else None
        with urllib.request.urlopen(asked, timeout=30, context=trusted) as reply:
            return json.load(reply)


def tonights(template: dict[str, Any], *, job: str, uid: str) -> dict[str, Any]:
    """The template's copy that runs. Not named `job`: KubeRay names its submitter's Job after the RayJob."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid}
    return {
        "apiVersion": template["apiVersion"],
        "kind": template["kind"],
        "metadata": {
            "name": f"{job}-ray",
            "labels": template["metadata"].get("labels", {}),
            "ownerReferences": [owner],
        },
        "spec": template["spec"] | {"suspend": False},
    }


def end_of(jobs: RayJobs, name: str, *, look_every_s: float) -> dict[str, Any]:
    """Its last status. The API server may be away for a while; the Job's own deadline ends the wait."""
    shown = ""
    while True:
        try:
            status = jobs.get(name).get("status", {})
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", None) == 404:
                return {"jobStatus": "DELETED", "message": f"somebody deleted RayJob {name}"}
            status = {"jobDeploymentStatus": f"not known ({error})"}
        stage = status.get("jobDeploymentStatus", "")
        if stage != shown:
            print(f"{name}: {stage or 'new'}", flush=True)
            shown = stage
        if stage in ENDED:
            return status
        time.sleep(look_every_s)


def launch(jobs: RayJobs, *, job: str, uid: str, look_every_s: float = 10.0) -> int:
    """The exit status: 0 if the run succeeded."""
    made = jobs.create(tonights(jobs.get(TEMPLATE), job=job, uid=uid))
    status = end_of(jobs, made["metadata"]["name"], look_every_s=look_every_s)
    print(f"{status.get('jobStatus')}: {status.get('message', '')}", flush=True)
    return 0 if status.get("jobStatus") == "SUCCEEDED" else 1


if __name__ == "__main__":
    here = RayJobs("https://kubernetes.default.svc", Path("/var/run/secrets/kubernetes.io/serviceaccount"))
    sys.exit(launch(here, job=os.environ["JOB_NAME"], uid=os.environ["JOB_UID"]))
