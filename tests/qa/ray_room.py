"""What worker processes open in tests: few imports, since every worker starts anew."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sproutrag.qa.dispatch import Dispatcher
from sproutrag.qa.ray_dispatch import Room, hire
from tests.qa.oracle import OURS, Gold, Oracle, read_documents
from tests.qa.scripted import Reply, WordIndex


class Fatal(Oracle):
    """Takes its process down once, on the first reply to `phrase`; logs every call to a file."""

    def __init__(self, gold: Gold, log: Path, phrase: str = "", delay_s: float = 0.0) -> None:
        super().__init__(gold, delay_s=delay_s)
        self.log = log
        self.phrase = phrase

    def reply(self, user: str, schema: dict[str, Any]) -> Reply:
        died = self.log.with_suffix(".died")
        if self.phrase and self.phrase in user and not died.exists():
            died.touch()
            os._exit(1)
        with open(self.log, "a") as log:
            log.write(f"{os.getpid()} {time.time():.1f}\n")
        return super().reply(user, schema)


@dataclass(frozen=True)
class OpenRoom:
    """Picklable: what each worker process opens."""

    gold: Gold
    log: Path
    phrase: str = ""
    delay_s: float = 0.0

    def __call__(self) -> Room:
        index = WordIndex(read_documents(OURS))
        return Room(Dispatcher(Fatal(self.gold, self.log, self.phrase, self.delay_s)), index, index)


class Owner:
    """An actor with a crew of its own, as a server has it."""

    def __init__(self, open_room: OpenRoom) -> None:
        self.hired = hire(open_room, size=1)

    def crew_id(self) -> str:
        return self.hired.crew.id
