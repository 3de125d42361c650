#!/usr/bin/env bash
# Sets up and runs the tests: `bash infra/test.sh [fast|slow|all]`, all by default.
set -euo pipefail
. "$(dirname "$0")/environment.sh"
tier=${1:-all}
case $tier in fast | slow | all) ;; *) echo "usage: bash infra/test.sh [fast|slow|all]" >&2; exit 2 ;; esac

if [ "$tier" != slow ]; then
    echo "==> fast tests: library, style, architecture" >&2
    OMP_NUM_THREADS=1 python -m pytest -m "not slow and not gpu" --durations=15
fi
if [ "$tier" != fast ]; then
    echo "==> slow tests: real Ray jobs end to end" >&2
    python -m pytest -m "slow and not gpu" --durations=10
fi
