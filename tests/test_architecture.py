"""The rules of the house, read from the source: who imports whom, how long a file is, which names exist."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [name for name in ("sproutrag", "pipelines", "serve") if (ROOT / name).is_dir()]
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

RAY_ROOMS = {"sproutrag/qa/ray_dispatch.py", "sproutrag/private_ray.py"}
# Start jobs by name, each imported when its command runs.
COMMAND_ROOMS = {"sproutrag/cli.py", "sproutrag/qa/commands.py"}
NO_TORCH = (
    "sproutrag/tree.py",
    "sproutrag/search.py",
    "sproutrag/storage.py",
    "sproutrag/where.py",
    "sproutrag/qa/question.py",
    "sproutrag/qa/clustering.py",
    "sproutrag/qa/answer.py",
)
HEAVY = {"torch", "transformers", "ray", "lance", "lancedb", "sentencex", "scipy", "vllm"}
ROOMS_WITHOUT_A_NOUN = {"utils", "util", "common", "helpers", "base", "manager", "schema", "core", "misc"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node


def imported_packages(path: Path) -> set[str]:
    return {module.split(".")[0] for module, _ in imports(ast.parse(path.read_text()))}


def functions_in(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_rooms_import_only_downwards(path: Path) -> None:
    found, room = imported_packages(path), name(path)
    if room in COMMAND_ROOMS:
        return
    if room.startswith("sproutrag/"):
        assert not found & {"pipelines", "serve"}, f"{room}: the library imports neither jobs nor apps"
        assert "ray" not in found or room in RAY_ROOMS, f"{room}: only {RAY_ROOMS} may import ray"
    if room.startswith("pipelines/"):
        assert "serve" not in found
    if room.startswith("serve/"):
        assert "pipelines" not in found


@pytest.mark.parametrize("path", [p for p in FILES if name(p).startswith("sproutrag/qa/")], ids=name)
def test_question_answering_knows_retrieval_only_by_its_protocol(path: Path) -> None:
    modules = {module for module, _ in imports(ast.parse(path.read_text()))}
    assert not modules & {"sproutrag.encoder", "sproutrag.index", "sproutrag.retriever"}


@pytest.mark.parametrize("room", NO_TORCH)
def test_the_maths_and_the_storage_run_without_torch(room: str) -> None:
    code = f"import sys; import {room[:-3].replace('/', '.')}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0, f"{room} pulls in torch"


def test_help_answers_at_once() -> None:
    heavy = "{'torch', 'ray', 'lance', 'lancedb'}"
    code = f"import sys; import sproutrag.cli; print(*sorted(set(sys.modules) & {heavy}))"
    loaded = output_of(sys.executable, "-c", code)
    assert not loaded, f"sproutrag.cli loads {loaded} before a command is chosen"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_heavy_packages_are_imported_at_the_top_of_their_room(path: Path) -> None:
    tree = ast.parse(path.read_text())
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    constructors = {f for c in classes for f in functions_in(c) if f.name == "__init__"}
    for function in functions_in(tree):
        if function in constructors or name(path) in COMMAND_ROOMS:
            continue
        hidden = {module for module, _ in imports(function) if module.split(".")[0] in HEAVY}
        assert not hidden, f"{name(path)}:{function.lineno} {function.name} hides an import of {hidden}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_rooms_stay_small_and_have_a_noun(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 350, f"{name(path)} has {lines} lines: split it by subject"
    assert path.stem not in ROOMS_WITHOUT_A_NOUN, f"{name(path)}: move each function next to its data"


def test_few_type_checks_and_value_errors() -> None:
    source = "\n".join(path.read_text() for path in FILES)
    thousands = max(len(source.splitlines()) / 1000, 1)
    assert source.count("isinstance(") / thousands <= 10, "check once, at the door"
    assert source.count("raise ValueError") / thousands <= 8, "use the exception tree of the module"


def test_functions_stay_short() -> None:
    functions = [f for path in FILES for f in functions_in(ast.parse(path.read_text()))]
    lengths = sorted((f.end_lineno or f.lineno) - f.lineno + 1 for f in functions)
    median, p90 = lengths[len(lengths) // 2], lengths[int(len(lengths) * 0.9)]
    assert median <= 15 and p90 <= 45, f"functions have {median} lines in the median, {p90} at p90"


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_no_mocks(path: Path) -> None:
    modules = {module for module, _ in imports(ast.parse(path.read_text()))}
    assert not {m for m in modules if m.startswith("unittest")}, f"{name(path)}: use the real component"


def test_every_option_is_read() -> None:
    """An option that nothing reads is a promise that nobody keeps."""
    rooms = [ROOT / "sproutrag" / "options.py", ROOT / "sproutrag" / "qa" / "options.py"]
    walks = [n for room in rooms for n in ast.walk(ast.parse(room.read_text()))]
    classes = [n for n in walks if isinstance(n, ast.ClassDef)]
    fields = {(c.name, f.target.id) for c in classes for f in c.body
              if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)}  # fmt: skip
    read = {pair for path in FILES if path not in rooms for pair in options_read(ast.parse(path.read_text()))}
    bases = {(c.name, ast.unparse(base)) for c in classes for base in c.bases}
    read |= {(base, field) for kind, base in bases for reader, field in read if reader == kind}
    assert not fields - read, f"options that nothing reads: {sorted(fields - read)}"


def options_read(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(class, field) of what functions read from a parameter that is annotated with a class of options."""
    for function in functions_in(tree):
        kinds = {a.arg: ast.unparse(a.annotation) for a in function.args.args if a.annotation}
        for n in ast.walk(function):
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in kinds:
                yield kinds[n.value.id], n.attr


def test_the_file_tree_in_the_readme_is_true() -> None:
    block = (ROOT / "README.md").read_text().split("## The house")[1].split("```")[1]
    named, folder = set(), ""
    for line in block.splitlines():
        words = line.split()
        if not words:
            continue
        folder = "" if not line.startswith(" ") else folder
        paths = [w for w in words[: words.index("#")] if w] if "#" in words else words
        if paths[0].endswith("/") and not line.startswith(" "):
            folder = paths[0]
        named |= {folder + p if line.startswith(" ") else p for p in paths}
    missing = {p for p in named if not (ROOT / p).exists()}
    assert not missing, f"README names files that do not exist: {sorted(missing)}"
    unnamed = {name(p) for p in FILES if p.name != "__init__.py"} - named
    assert not unnamed, f"README's file tree leaves out {sorted(unnamed)}"


def test_no_registry_host_is_named() -> None:
    tracked = output_of("git", "ls-files").splitlines()
    hosts = ["py" + "pi.org", "pythonhosted" + ".org", "registry." + "npmjs", "deb." + "debian.org"]
    guilty = [t for t in tracked if any(h in (ROOT / t).read_text(errors="ignore") for h in hosts)]
    assert not guilty, f"package registries' hosts in {guilty}"


@pytest.mark.parametrize("command", [["ruff", "check", "."], ["mypy"]], ids=["ruff", "mypy"])
def test_ruff_and_mypy_are_content(command: list[str]) -> None:
    run = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
