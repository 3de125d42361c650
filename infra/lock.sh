#!/usr/bin/env bash
# Resolves pyproject.toml's extras in a fresh environment and writes requirements.lock. Run it to change a version.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${PYTHON:-python3.11}" -m venv "$fresh"
"$fresh/bin/pip" install --quiet torch==2.13.0 ".[index,serve,dev]"
{
    echo "# The one lock file: every package of extras index, serve and dev, for Python 3.11 on Linux. Made by infra/lock.sh."
    # A local version such as +cpu names one machine's build; the lock holds for all.
    "$fresh/bin/pip" freeze --exclude sproutrag --exclude pip --exclude setuptools | sed 's/+.*//' | sort -f
} > requirements.lock
echo "requirements.lock: $(grep -vc '^#' requirements.lock) packages" >&2
