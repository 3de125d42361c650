#!/usr/bin/env bash
# From nothing to evidence: sets up, indexes our sample corpus, and searches it in English and Chinese, a PDF among it.
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

echo "==> next: sproutrag search \"your question\" --db $db        sproutrag show DOC --db $db --html tree.html" >&2
