"""How well a base predicts the moves of games it has not read: a half-minute check before a long run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from grue.errors import DataError
from grue.pretrain.corpus import Transcript, augment
from grue.pretrain.train import encode
from grue.prompts.tokens import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LIMIT = 16  # in the header of every game
GAMES = 300
FIRST_GAME = 500_000  # of the pretrain fold: far beyond what the phases read
FIRST_SHUFFLED_GAME = 400_000


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Results on the valid actions in games that nothing was learned from."""

    loss: float  # nats an action
    accuracy: float  # share of their tokens that are ranked first, 0..1

    def __str__(self) -> str:
        return f"{self.loss:.3f} nats an action, {self.accuracy:.1%} of their tokens ranked first"


@torch.no_grad()
def held_out(model: PreTrainedModel, encoder: Encoder, transcripts: Sequence[Transcript]) -> HeldOut:
    """Measured on the games that were won, in float32, renamed by one seed: the same for every base.

    Errors: DataError where no game was won.
    """
    rng, loss, right, tokens, actions = random.Random(5), 0.0, 0, 0, 0
    for transcript in transcripts:
        if not transcript.won:
            continue
        renamed = augment(transcript, rng)
        ids, weights = encode(renamed, encoder, LIMIT, 0.0)
        logits_TV = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
        scored_T = torch.tensor(weights[1:]) == 1.0
        targets, logits = torch.tensor(ids[1:])[scored_T], logits_TV[scored_T]
        loss += F.cross_entropy(logits, targets, reduction="sum").item()
        right += int((logits.argmax(-1) == targets).sum())
        tokens += len(targets)
        actions += sum(renamed.valid)
    if not actions:
        raise DataError("none of the held-out games was won", hint="record more of them")
    return HeldOut(loss / actions, right / tokens)
