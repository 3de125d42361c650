# Sourced by quickstart.sh and test.sh: makes .venv from requirements.lock once, and leaves it on PATH.
# Safe to repeat: a stamp inside .venv remembers the lock file it was made from; a half-made one is finished.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "sproutrag needs Python 3.11: install it, or set PYTHON=/path/to/python3.11" >&2
    return 1
}

install_locked() {
    # --no-compile saves a minute: what runs is compiled when it first runs.
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-compile "$@" |
        { grep --line-buffered -E '^(Collecting|Installing|Successfully)' || true; } | cut -c1-100 >&2  # nothing new is no failure
}

prepare_environment() {
    local stamp=.venv/made-from wanted
    wanted=$(cat requirements.lock pyproject.toml | sha256sum)
    if [ "$(cat $stamp 2>/dev/null)" != "$wanted" ]; then
        echo "==> making .venv from requirements.lock ($(grep -vc '^#' requirements.lock) packages, 3.5 GB, some minutes the first time)" >&2
        [ -x .venv/bin/python ] || "$(find_python)" -m venv .venv
        # torch with what its build asks for (CUDA or nothing); all else as locked and no more (infra/lock.sh).
        install_locked --constraint requirements.lock torch
        install_locked --no-deps --requirement requirements.lock
        .venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --editable . >&2
        echo "$wanted" > $stamp
    fi
    export PATH="$PWD/.venv/bin:$PATH"
    export RAY_AUTH_MODE="${RAY_AUTH_MODE:-disabled}" RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false
}

prepare_environment
