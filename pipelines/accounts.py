"""What became of every input: each ends in exactly one of indexed, replaced, unchanged, quarantined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipelines.actors import Outcome
from pipelines.plan import Plan
from sproutrag.quarantine import Problem
from sproutrag.storage import Written


@dataclass(frozen=True, slots=True)
class Account:
    """written: fragments with all documents that were indexed. failed: problems met by this run.

    resumed: how many documents an interrupted run had finished. held: set aside earlier, not tried again.
    """

    written: Sequence[Written]
    failed: Sequence[Problem]
    held: Sequence[Problem]
    indexed: int
    replaced: int
    unchanged: int
    resumed: int

    @property
    def doc_ids(self) -> Iterator[str]:
        return (id for one in self.written for id in one.doc_ids)

    @property
    def problems(self) -> list[Problem]:
        return [*self.failed, *self.held]


def account(
    plan: Plan, outcomes: Sequence[Outcome], *, written: Sequence[Written], problems: Sequence[Problem]
) -> Account:
    """written, problems: what an interrupted run left. Asserts that nothing is lost or counted twice."""
    finished = [*written, *(outcome.written for outcome in outcomes if outcome.written)]
    ids = [id for one in finished for id in one.doc_ids]
    met = [*problems, *(problem for outcome in outcomes for problem in outcome.problems)]
    gone = lost(plan, {*ids, *(problem.doc_id for problem in met)})
    replaced = sum(id in plan.stale for id in ids)
    result = Account(
        written=finished,
        failed=[*problems_in(plan.set_aside), *met, *gone],
        held=problems_in(plan.held),
        indexed=len(ids) - replaced,
        replaced=replaced,
        unchanged=plan.unchanged,
        resumed=sum(len(one.doc_ids) for one in written),
    )
    out = result.indexed + result.replaced + result.unchanged + len(result.problems)
    assert out == plan.inputs, f"{plan.inputs} inputs came in but {out} are accounted for"
    return result


def problems_in(rows: pa.Table) -> list[Problem]:
    """From rows of FOUND that have a reason."""
    return [Problem(**row) for row in rows.select(["source", "doc_id", "reason", "hint"]).to_pylist()]


def lost(plan: Plan, accounted: set[str]) -> list[Problem]:
    """Documents that the scan saw and the second reading did not."""
    reason, hint = "it changed or went away while the run was reading", "Run again when the source is at rest"
    return [
        Problem(row["source"], row["doc_id"], reason, hint)
        for row in plan.wanted.select(["source", "doc_id"]).to_pylist()
        if row["doc_id"] not in accounted
    ]
