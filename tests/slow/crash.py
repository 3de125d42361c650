"""`kill -9` in the middle of an indexing run, again and again; after each re-run the index has to be whole.

    python tests/slow/crash.py --rounds 50              # each run with a Ray of its own
    python tests/slow/crash.py --rounds 50 --cluster    # all runs join one; starting Ray each time costs most
    python tests/slow/crash.py --rounds 500 --fork      # no Ray: only what is on disk, at many more moments

Each round changes a third of 300 small documents, adds some, removes some, starts a run, kills its driver or
one of its Ray workers at a random moment, and runs again. Then: every input accounted for, `verify` content,
every document found by its own phrase, none twice, no old text, no process left, no growth on disk.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import lance
import numpy as np
from lance.query import MatchQuery
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # for a script run by hand

from sproutrag.index import TreeIndex  # noqa: E402
from sproutrag.snapshots import current_snapshot  # noqa: E402
from sproutrag.tables import table_uri  # noqa: E402
from sproutrag.verification import verify  # noqa: E402
from tests.slow.forked_runs import ForkedRun  # noqa: E402
from tests.slow.victims import POLL_S, Kill, Process, end_those_left, wait_and_kill  # noqa: E402
from tests.tiny_models import tiny_bert  # noqa: E402

DOCUMENTS, EMPTY = 300, 2  # EMPTY more have no text: they have to be set aside
CHANGED, ADDED = 1 / 3, 12  # per round; as many are removed as are added
GROWTH = 1.5
SEARCHES, SHOWN = 20, 5
RUN_SECONDS = 600.0  # a run that takes longer hangs
SHUTDOWN_SECONDS = 20.0  # for Ray's processes to notice that their driver is gone
SET_ASIDE = 3
WORDS = ["rain", "river", "falls", "rises", "north", "south", "engine", "stops", "clock", "bell"]
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
Run = subprocess.Popen[bytes] | ForkedRun


@dataclass
class Corpus:
    """doc_id -> (phrase, text); a word of a phrase is in one version of one document and nowhere else."""

    rng: np.random.Generator
    words: set[str] = field(default_factory=set)  # of all phrases ever
    documents: dict[str, tuple[str, str]] = field(default_factory=dict)
    born: int = 0
    retired: list[str] = field(default_factory=list)  # phrases that no search may return any more

    def add(self, count: int) -> None:
        for _ in range(count):
            self.documents[f"doc-{self.born:05}"] = self.write()
            self.born += 1

    def change(self) -> None:
        """What a night brings; the phrases of what is replaced or removed are retired."""
        ids = self.rng.permutation(list(self.documents)).tolist()
        removed, changed = ids[:ADDED], ids[ADDED : ADDED + int(CHANGED * DOCUMENTS)]
        self.retired = [self.documents[id][0] for id in [*removed, *changed]]
        for id in removed:
            del self.documents[id]
        for id in changed:
            self.documents[id] = self.write()
        self.add(ADDED)

    def write(self) -> tuple[str, str]:
        phrase = f"{self.invent()} {self.invent()}"
        lines = [" ".join(self.rng.choice(WORDS, 9)) for _ in range(5)]
        return phrase, ". ".join([*lines[:2], f"Here stands {phrase}", *lines[2:]]) + "."

    def invent(self) -> str:
        while (word := "".join(self.rng.choice(SYLLABLES, 4))) in self.words:
            pass
        self.words.add(word)
        return word

    def save(self, path: str) -> None:
        rows = [{"doc_id": id, "text": text, "lang": "en"} for id, (_, text) in self.documents.items()]
        rows += [{"doc_id": f"empty-{i}", "text": " "} for i in range(EMPTY)]
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@dataclass(frozen=True)
class Place:
    """Where a crash test lives: one folder with the encoder, the sources and the index.

    cluster: address of the Ray that runs join; "" for one of their own. fork: as forked_runs.py says.
    """

    folder: str
    cluster: str = ""
    fork: bool = False

    @property
    def db(self) -> str:
        return f"{self.folder}/db"

    @property
    def source(self) -> str:
        return f"{self.folder}/corpus.jsonl"

    @property
    def encoder(self) -> str:
        return f"{self.folder}/encoder"

    def start(self, workers: int = 1) -> Run:
        """A run in a session of its own; what it prints goes to files, so that no pipe can block it."""
        words = ["index", self.source, "--db", self.db, "--encoder", self.encoder]
        flags = ["--delete-missing", "--keep", "1", "--workers", str(workers), "--json"]
        if self.fork:
            return ForkedRun([*words, *flags], self.folder)
        return subprocess.Popen(
            [sys.executable, "-c", "from sproutrag.cli import main; main()", *words, *flags],
            env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": self.cluster},
            stdout=open(f"{self.folder}/out", "wb"),
            stderr=open(f"{self.folder}/err", "wb"),
            start_new_session=True,
        )

    def report(self) -> dict:
        text = Path(f"{self.folder}/out").read_text()
        return json.loads(text) if text else {}

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in Path(self.db).rglob("*") if path.is_file())


# --- one round


@dataclass
class Round:
    number: int
    kill: Kill
    killed: int = 0  # pid; 0: the run was over before
    at_s: float = 0.0
    seconds: float = 0.0
    resumed: int = 0  # documents that the next run took over from the killed one
    bytes: int = 0
    faults: list[str] = field(default_factory=list)

    def line(self, seed: int) -> str:
        who = f"{self.kill.victim} {self.killed}" if self.killed else f"nobody ({self.kill.victim}: too late)"
        what = f"round {self.number:3} seed {seed}: {who} at {self.at_s:5.1f} s ({self.kill.moment})"
        more = f"; and {len(self.faults) - SHOWN} more" if len(self.faults) > SHOWN else ""
        found = "; ".join(self.faults[:SHOWN]) + more or "sound"
        return f"{what}, {self.seconds:5.1f} s, {self.resumed:3} resumed, {self.bytes:,} bytes: {found}"


def run_round(number: int, place: Place, corpus: Corpus, rng: np.random.Generator, typical_s: float) -> Round:
    corpus.change()
    corpus.save(place.source)
    kill = Kill.draw(rng)
    round_ = Round(number, replace(kill, victim="driver") if place.fork else kill)
    started = time.monotonic()
    first = place.start(workers=int(rng.integers(1, 3)))
    round_.killed, related = wait_and_kill(
        round_.kill,
        first.pid,
        place.db,
        rng,
        ray_root=os.getpid() if place.cluster else first.pid,
        typical_s=typical_s,
        is_over=lambda: first.poll() is not None,
    )
    round_.at_s = time.monotonic() - started
    if round_.killed != first.pid:
        finish(first, place, round_)
    first.wait()
    finish(place.start(workers=int(rng.integers(1, 3))), place, round_)
    round_.seconds = time.monotonic() - started
    round_.faults += check(place, corpus, round_, rng)
    round_.faults += leftovers(related)
    return round_


def finish(run: Run, place: Place, round_: Round) -> None:
    """Let it come to its end, which has to be a good one."""
    deadline = time.monotonic() + RUN_SECONDS
    while run.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    run.kill()  # says nothing to one that has ended
    status = run.wait()
    if status != SET_ASIDE:
        said = Path(f"{place.folder}/err").read_text().strip().splitlines()[-3:]
        round_.faults.append(f"a run ended with status {status}: {' / '.join(said)}")


def leftovers(related: Sequence[Process]) -> Iterator[str]:
    """Ray's processes end by themselves; their scratch folder the next run removes."""
    for process in end_those_left(list(related), patience_s=SHUTDOWN_SECONDS):
        yield f"process {process.pid} was left over: {process.command[:60]}"
    words = {word for process in related for word in process.command.replace("=", " ").split()}
    for folder in {"/".join(word.split("/")[:3]) for word in words if word.startswith("/tmp/sproutrag-")}:
        if os.path.isdir(folder):
            yield f"{folder} was left over"


# --- what has to hold after every round


def check(place: Place, corpus: Corpus, round_: Round, rng: np.random.Generator) -> Iterator[str]:
    yield from check_report(place.report(), corpus, round_)
    if current_snapshot(place.db) is None:
        yield "there is no index"
        return
    for problem in verify(place.db).problems:
        yield f"verify: {problem.kind}: {problem.what} in {problem.where}"
    yield from check_tables(place, corpus)
    yield from check_search(place, corpus, rng)
    round_.bytes = place.bytes()


def check_report(report: dict, corpus: Corpus, round_: Round) -> Iterator[str]:
    out = sum(report.get(name, 0) for name in ("indexed", "replaced", "unchanged", "quarantined"))
    expected = len(corpus.documents) + EMPTY
    if not (report.get("in") == out == expected and report.get("quarantined") == EMPTY):
        counted = {name: value for name, value in report.items() if isinstance(value, int)}
        yield f"{expected} inputs, {EMPTY} of them empty, but the report says {counted}"
    round_.resumed = report.get("resumed", 0)


def check_tables(place: Place, corpus: Corpus) -> Iterator[str]:
    expected = {id: text for id, (_, text) in corpus.documents.items()}
    rows = lance.dataset(table_uri(place.db, "documents")).to_table(columns=["doc_id", "text"]).to_pylist()
    if len(rows) != len(expected):
        yield f"{len(expected)} documents, but {len(rows)} rows"
    if {row["doc_id"]: row["text"] for row in rows} != expected:
        yield "the stored documents are not those of the source"


def check_search(place: Place, corpus: Corpus, rng: np.random.Generator) -> Iterator[str]:
    """Each document by the full-text index, and some by the whole search, which takes far longer."""
    index = TreeIndex.open(place.db)
    try:
        phrases = {id: phrase for id, (phrase, _) in corpus.documents.items()}
        found = leaves_with(index, phrases.values())
        for id, phrase in phrases.items():
            if not any(phrase in text for text in found.get(id, [])):
                yield f"{id} is not found by {phrase!r}"
        if old := leaves_with(index, corpus.retired):
            yield f"old text is still found in {', '.join(list(old)[:SHOWN])}"
        for id in rng.choice(list(phrases), SEARCHES, replace=False).tolist():
            passages = index.search(phrases[id], k=1)
            if not (passages and passages[0].doc_id == id and phrases[id] in passages[0].text):
                yield f"a search for {phrases[id]!r} does not return {id}"
    finally:
        index.close()


def leaves_with(index: TreeIndex, phrases: Iterable[str]) -> dict[str, list[str]]:
    """doc_id -> texts of the leaves that hold a word of these phrases."""
    found: dict[str, list[str]] = {}
    words = MatchQuery(" ".join(phrases), "text")
    columns = ["doc_id", "text", "_score"]
    rows = index.nodes.scanner(columns=columns, full_text_query=words, limit=10 * DOCUMENTS)
    for row in rows.to_table().to_pylist():
        found.setdefault(row["doc_id"], []).append(row["text"])
    return found


# --- all rounds


@contextmanager
def ray_to_join(wanted: bool) -> Iterator[str]:
    """The address of a Ray that lives as long as the test, or "" where each run is to start its own."""
    if not wanted:
        yield ""
        return
    os.environ.update(RAY_AUTH_MODE="disabled", PYTHONPATH=str(ROOT))
    node = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def run_rounds(rounds: int, place: Place, *, seed: int) -> list[Round]:
    """A clean build, then the rounds, one line each as they end."""
    corpus = Corpus(np.random.default_rng(seed))
    tiny_bert(place.encoder, window=512)
    corpus.add(DOCUMENTS)
    corpus.save(place.source)
    built = Round(0, Kill("nobody", "clean build", 0.0))
    started = time.monotonic()
    finish(place.start(), place, built)
    typical_s = time.monotonic() - started
    built.faults += check(place, corpus, built, corpus.rng)
    print(f"clean build: {typical_s:.1f} s, {built.bytes:,} bytes: {built.faults or 'sound'}", flush=True)
    done = [built]
    for number in range(1, rounds + 1):
        round_seed = 1000 * seed + number
        round_ = run_round(number, place, corpus, np.random.default_rng(round_seed), typical_s)
        if round_.bytes > GROWTH * built.bytes:
            round_.faults.append(f"{round_.bytes:,} bytes where a clean build has {built.bytes:,}")
        typical_s = 1.05 * typical_s if round_.killed else round_.at_s  # other load comes and goes
        print(round_.line(round_seed), flush=True)
        done.append(round_)
    return done


def summary(done: Sequence[Round]) -> str:
    built, *rounds = done
    killed = [round_ for round_ in rounds if round_.killed]
    drivers = sum(round_.kill.victim == "driver" for round_ in killed)
    growth = max((round_.bytes for round_ in rounds), default=0) / max(built.bytes, 1)
    faulty = [str(round_.number) for round_ in done if round_.faults]
    return (
        f"{len(rounds)} rounds, {drivers} drivers and {len(killed) - drivers} workers killed, "
        f"{sum(round_.resumed for round_ in rounds)} documents resumed, at most {growth:.2f} x the bytes "
        f"of a clean build, {sum(round_.seconds for round_ in rounds):,.0f} s: "
        + (f"faults in rounds {', '.join(faulty)}" if faulty else "all sound")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=50)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--cluster", action="store_true")
    options.add_argument("--fork", action="store_true")
    chosen = options.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="crash-") as folder, ray_to_join(chosen.cluster) as address:
        done = run_rounds(chosen.rounds, Place(folder, address, chosen.fork), seed=chosen.seed)
    print(summary(done))
    return 1 if any(round_.faults for round_ in done) else 0


if __name__ == "__main__":
    sys.exit(main())
