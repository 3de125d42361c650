import numpy as np
import pytest

from pipelines.evaluate_answers import as_table, measured
from sproutrag.cli import WRONG_USAGE, run
from sproutrag.datasets import Evidence, Query

QUERIES = [Query("1", "?", (Evidence("d", 5, 9),), ("x",)), Query("2", "?", (), ()), Query("3", "?", ())]


def answer(*citations: tuple[str, int, int], answered: bool = True) -> dict:
    cited = [{"doc_id": doc, "spans": [(start, end)], "quote": ""} for doc, start, end in citations]
    usage = {"calls": 2, "prompt_tokens": 30, "completion_tokens": 10, "wasted_tokens": 0}
    return {"answered": answered, "answers": ["x"], "citations": cited, "usage": usage, "seconds": 1.0}


def test_citation_counts_only_over_gold_evidence_and_a_lost_question_is_not_paid_for() -> None:
    answers = {"1": answer(("d", 8, 20), ("d", 9, 20), ("e", 5, 9)), "2": answer(answered=False)}
    row = measured(QUERIES, answers, np.array([1.0, 1.0, 0.0]))
    assert (row["questions"], row["answered"], row["f1"]) == (3, 1, 66.7)
    assert (row["citations"], row["citation_precision"], row["cited"]) == (3, 33.3, 100.0)
    assert (row["calls"], row["tokens"], row["seconds"]) == (2, 40, 1)


def test_table_says_where_there_was_nothing_to_count() -> None:
    row = measured(QUERIES, {}, np.zeros(3)) | {"data": "own", "method": "llm-only"}
    assert as_table([row]).splitlines()[-1] == "| own | llm-only | 3 | 0.0 | 0 | – | – | 0.0 | 0.0 | 0.0 |"


def test_method_that_does_not_exist_is_wrong_usage_before_anything_is_indexed(tmp_path, capsys) -> None:
    words = ["evaluate", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--methods", "apt-rug"]
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == WRONG_USAGE
    assert "apt-rag" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_folder_without_questions_is_named_before_anything_is_indexed(tmp_path, capsys) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"doc_id": "a", "text": "One."}\n')
    words = ["evaluate", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--methods", "naive-rag"]
    assert run(words) == WRONG_USAGE
    assert f"{tmp_path} has no queries.jsonl" in capsys.readouterr().err and not (tmp_path / "out").exists()
