"""Made-up words, for things whose names a policy is not to learn by heart."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Set

from grue.types import Observation


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip("-") for part in text.split())


# The building blocks of English words, since a model copies only what resembles what it has seen copied. Common ones,
# single letters and nothing at all (-), are listed more than once.
_ONSETS = _parts("""
    - - - b c d f g h j k l m n p q r s t v w x y z b c d f g h k l m n p r s t v w
    bl br ch cl cr dr fl fr gl gr kn ph pl pr qu sc sh sl sm sn sp squ st str sw th thr tr tw wh wr
""")
_VOWELS = _parts("a e i o u a e i o u y ai au ea ee ei ie io oa oi oo ou ow ui")
_CODAS = _parts("""
    - - - - b c d g k l m n p r s t t x y z
    ce ch ck ff ge ke le ll mp nd ne ng nt rd re rt se sh ss st te tch th ve
""")
_WORD = re.compile(r"[^\W\d_]+")


def made_up_word(rng: random.Random) -> str:
    """A word of one to four syllables, in small letters. It may be an English one by chance."""
    syllables = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))


def made_up_names(things: Iterable[str], first: Observation, rng: random.Random) -> dict[str, str]:
    """For each of `things` another made-up word in small letters, none of which occurs in the observation.

    A set is sorted first: its order is not the same in another process.
    """
    known = {word.lower() for text in first.texts for word in _WORD.findall(text)}
    names: dict[str, str] = {}
    for thing in sorted(things) if isinstance(things, Set) else things:
        while (new := made_up_word(rng)) in known:
            pass
        names[thing] = new
        known.add(new)
    return names
