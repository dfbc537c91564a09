"""The promises by name, and what is raised when one is broken."""

from __future__ import annotations

FORGOTTEN = "1. Nothing is forgotten"
ONE = "2. One at a time"
WORD = "3. The user's word is final"
WAIT = "4. Every wait has an end and a reason"
SHOWN = "5. A state that was shown is true, and a terminal one is final"
WHOLE = "6. Outputs are whole or absent"


class Broken(BaseException):
    """A promise was broken. Not an Exception, so that no code under test takes it for a fault of its own."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise
