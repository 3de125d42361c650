#!/usr/bin/env bash
# From nothing to answers: sets up, indexes our sample corpus, searches it in English and Chinese, a PDF among it, and
# asks it a question with a small LLM on this machine (real vLLM; NO_LLM=1 leaves that out).
set -euo pipefail
. "$(dirname "$0")/environment.sh"
db=${1:-runs/quickstart}

echo "==> sproutrag index tests/data/corpus --db $db" >&2
sproutrag index tests/data/corpus --db "$db"

search() {
    echo "==> sproutrag search \"$1\" --db $db -k 3" >&2
    sproutrag search "$1" --db "$db" -k 3
}
search "How long does confidentiality last after the agreement ends?"
search "图书馆每次可以借多少本书？"
search "When was the main bearing of the pump replaced?"      # from a PDF: the evidence names its pages

if [ -z "${NO_LLM:-}" ]; then
    llm=${LLM:-qwen2.5-coder-0.5b} question="Why was the lighthouse door painted yellow?"
    case $llm in *://*) ;; *) sproutrag models get "$llm" >&2 ;; esac
    echo "==> sproutrag ask \"$question\" --db $db --llm $llm -k 8 --trace $db.trace.json (loading the model takes a minute)" >&2
    sproutrag ask "$question" --db "$db" --llm "$llm" -k 8 --trace "$db.trace.json"
    echo "==> sproutrag trace $db.trace.json" >&2
    sproutrag trace "$db.trace.json"
fi

echo "==> next: sproutrag search \"your question\" --db $db        sproutrag show DOC --db $db --html tree.html" >&2
