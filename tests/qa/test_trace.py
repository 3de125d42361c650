"""A trace as a file: what it holds, under which name, and what is refused as one."""

import json
from pathlib import Path

import pytest

from sproutrag.qa.trace import NoTrace, read_trace, trace_name, write_trace

NAMES = [
    "q1",
    "../../etc/passwd",
    "a/b",
    "..",
    ".",
    "NUL\x00",
    "质量",
    "x" * 500,
    "x" * 499 + "y",
    "a:b",
    "a%3Ab",
]


def test_no_question_id_leads_out_of_the_folder_and_no_two_share_a_file(tmp_path: Path) -> None:
    paths = [tmp_path / trace_name(id) for id in NAMES]
    for path in paths:
        assert path.parent == tmp_path and len(path.name) < 200
        write_trace(path, {})
    assert len({path.name for path in paths}) == len(NAMES) == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no trace"),
        ("[" * 100_000, "is no trace"),
        ("[]", "is no trace"),
        ('{"answer": "x"}', "is no trace"),
        (json.dumps({"trace": {"format": 99, "root": {}}}), "has format 99"),
    ],
)
def test_other_files_are_refused_by_name(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(NoTrace, match=f"t.json {message}"):
        read_trace(path)


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NoTrace, match=r"none\.json: No such file"):
        read_trace(tmp_path / "none.json")
