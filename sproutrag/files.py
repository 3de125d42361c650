"""Files of any file system, opened by what they hold: compression is told by its mark, not by the name.

SourceError     a source that is not there or holds nothing to read; everything smaller is a Rejected.
"""

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem

ARROW_SCHEMES = ("s3", "gs", "gcs", "hdfs", "abfs", "abfss")  # Arrow reads these without further packages
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


class SourceError(Exception):
    """A source that cannot be listed; the message names it and says what to do."""


def filesystem_of(path: str) -> tuple[Any, str]:
    """(fsspec file system, path in it). Object stores go through Arrow, everything else through fsspec."""
    if "://" not in path:
        return LocalFileSystem(), os.path.abspath(path)
    scheme = path.split("://", 1)[0]
    try:
        if scheme in ARROW_SCHEMES:
            found, inner = pyarrow.fs.FileSystem.from_uri(path.replace("gcs://", "gs://", 1))
            return ArrowFSWrapper(found), inner
        return fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise SourceError(f"cannot open {path}: {error}") from error


def _zstd(raw: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))


DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b\x08": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstd,
}
BZIP2_BLOCK = b"1AY&SY"  # at byte 4; a text may well begin with "BZh"


def open_file(path: str) -> IO[bytes]:
    """The content, decompressed as a stream where it is compressed."""
    raw, unpack = open_raw(path)
    return unpack(raw) if unpack else raw


def open_raw(path: str) -> tuple[IO[bytes], Callable[[IO[bytes]], Any] | None]:
    """The file as it is, and what decompresses it, None for a file that is not compressed."""
    files, inner = filesystem_of(path)
    raw = files.open(inner, "rb")
    head = raw.read(10)
    raw.seek(0)
    for mark, unpack in DECOMPRESSORS.items():
        if head.startswith(mark) and (mark != b"BZh" or head[4:10] == BZIP2_BLOCK):
            return raw, unpack
    return raw, None
