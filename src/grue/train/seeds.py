"""Seeds from texts that name a place in a run, for generators that take only numbers."""

from __future__ import annotations

import hashlib


def hash_seed(text: str) -> int:
    """A number from a text, the same in every process (Python's own hash is not)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
