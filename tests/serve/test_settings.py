from pathlib import Path

import pytest

from serve.settings import Settings, SettingsProblem, read_settings


def test_command_line_wins_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sproutrag.yaml"
    file.write_text("db: from file\nmax_k: 7\nport: 1\nllm_ongoing: 3\n")
    monkeypatch.setenv("SPROUTRAG_MAX_K", "8")
    monkeypatch.setenv("SPROUTRAG_PORT", "2")
    settings = read_settings(str(file), port=3)
    assert (settings.db, settings.max_k, settings.port, settings.llm_ongoing) == ("from file", 8, 3, 3)
    assert settings.batch_size == Settings.model_fields["batch_size"].default


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- a\n", "no YAML mapping"),
        ("db: [\n", "no YAML mapping"),
        ("db: x\nbatchsize: 3\n", "batchsize: no such option"),
        ("db: x\nport: many\n", 'port: "many"'),
        ("db: x\nbatch_size: 0\n", "batch_size: 0"),
        ("db: x\nretriever_min_replicas: 3\n", "retriever_min_replicas 3 exceeds retriever_max_replicas 1"),
        ("port: 1\n", "no index"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "sproutrag.yaml"
    file.write_text(text)
    with pytest.raises(SettingsProblem) as problem:
        read_settings(str(file))
    assert named in str(problem.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsProblem, match=r"nowhere\.yaml: no such file"):
        read_settings("nowhere.yaml", db="x")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_a_public_address_needs_keys_or_a_word_that_it_may_do_without(host: str) -> None:
    with pytest.raises(SettingsProblem, match="no API keys"):
        read_settings(db="x", host=host)
    assert read_settings(db="x", host=host, keys="k.yaml").host == host
    assert read_settings(db="x", host=host, allow_anonymous=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_this_machine_alone_needs_no_keys(host: str) -> None:
    assert read_settings(db="x", host=host).host == host
