"""API keys: who asks, what they may see, how much at once. The file holds digests, never keys.

A key is 256 random bits, so a plain SHA-256 of it cannot be guessed back.
"""

import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from serve.logs import log
from serve.problems import Problem
from serve.settings import SettingsProblem
from sproutrag.where import WhereError, both, parse

LOOK_AGAIN_S = 1.0  # between two looks at the file
SCHEME = "bearer "
PREFIX = "sr-"


class Key(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=100)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    not_after: date | datetime | None = None
    concurrent: int | None = Field(None, ge=1)
    where: str | None = None

    @field_validator("where")
    @classmethod
    def readable(cls, where: str | None) -> str | None:
        if where is not None:
            try:
                parse(where)
            except WhereError as error:
                raise ValueError(str(error)) from error
        return where

    def expired(self, now: float) -> bool:
        """A date counts to its end, in UTC."""
        if self.not_after is None:
            return False
        if isinstance(self.not_after, datetime):
            return self.not_after.astimezone(UTC).timestamp() < now
        return str(self.not_after) < time.strftime("%Y-%m-%d", time.gmtime(now))


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks. where: the filter that all they see has to match; None: everything."""

    name: str
    concurrent: int
    where: str | None = None

    def narrowed(self, asked: str | None) -> str | None:
        """Of what this key may see, what the request asks for. Raises WhereError."""
        return both(self.where, asked)


class Keyring:
    """The keys of a file, read again when it changes; without a file everybody is `anonymous`."""

    def __init__(self, path: str, *, concurrent: int) -> None:
        self.path = path
        self.concurrent = concurrent
        self.keys: list[Key] = []
        self.changed = (0, 0)
        self.looked = 0.0
        if path:
            self.keys = read_keys(path)
            self.changed, self.looked = self.stamp(), time.monotonic()

    def who(self, authorization: str) -> Tenant:
        """Raises Problem 401. Takes as long for a wrong key as for a right one."""
        if not self.path:
            return Tenant("anonymous", self.concurrent)
        self.look_again()
        given = authorization[len(SCHEME) :].strip() if authorization.lower().startswith(SCHEME) else ""
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest()
        fitting = [key for key in self.keys if hmac.compare_digest(key.sha256, digest)]
        if not given:
            raise refused("The request has no key.")
        if not fitting:
            raise refused("The server does not know this key.")
        [key, *_] = fitting
        if key.expired(time.time()):
            raise refused("This key has expired.")
        return Tenant(key.name, key.concurrent or self.concurrent, key.where)

    def look_again(self) -> None:
        """A file that cannot be read leaves the keys as they were, and says so in the log."""
        if time.monotonic() - self.looked < LOOK_AGAIN_S:
            return
        self.looked = time.monotonic()
        try:
            changed = self.stamp()
            if changed != self.changed:
                self.keys, self.changed = read_keys(self.path), changed
                log("keys read again", keys=len(self.keys))
        except (OSError, SettingsProblem) as error:
            log("keys not read, the old ones count", level=40, file=self.path, error=type(error).__name__)

    def stamp(self) -> tuple[int, int]:
        found = os.stat(self.path)
        return found.st_mtime_ns, found.st_ino


def refused(why: str) -> Problem:
    return Problem(
        401,
        "No valid key",
        why,
        "Send `Authorization: Bearer KEY` with a key of this server.",
        {"WWW-Authenticate": "Bearer"},
    )


def read_keys(path: str) -> list[Key]:
    """Raises SettingsProblem, which names the entry and not its content."""
    try:
        with open(path, encoding="utf-8") as file:
            keys = TypeAdapter(list[Key]).validate_python(yaml.safe_load(file))
    except OSError as error:
        raise SettingsProblem(
            f"keys {path}: {error.strerror}; `sproutrag serve --new-key NAME` makes one"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsProblem(f"keys {path} is no YAML ({type(error).__name__})") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise SettingsProblem(
            f"keys {path}: {faults}; it is a list of {{name, sha256, not_after, concurrent, where}}"
        ) from None
    if not keys:
        raise SettingsProblem(f"keys {path}: the list is empty, so nobody could ask; add a key")
    if len({key.sha256 for key in keys}) < len(keys):
        raise SettingsProblem(f"keys {path}: one key is there twice; each needs its own")
    return keys


def new_key(name: str) -> tuple[str, str]:
    """A key, and its entry for the file."""
    key = PREFIX + secrets.token_urlsafe(32)
    entry: list[dict[str, Any]] = [{"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()}]
    return key, yaml.safe_dump(entry, sort_keys=False, allow_unicode=True)
