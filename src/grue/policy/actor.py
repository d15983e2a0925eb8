"""The copy of the trained model that plays: in the number format that is fastest, or the trained model itself."""

from __future__ import annotations

from copy import deepcopy

import torch

from grue.models.casting import cast
from grue.models.load import compute_dtype
from grue.models.policy_model import PolicyModel
from grue.models.reordered import reorder
from grue.models.sharding import whole


class Actor:
    """`model` is what plays. With an adapter or in float32 it is the trained model itself, which has nothing to `sync`.

    For a sharded model it is the whole copy beside the shards, and all processes must make the actor and `sync`
    together. A separate copy has reordered weights, unless `reordered` is false.
    """

    def __init__(self, trained: PolicyModel, dtype: str, *, reordered: bool = True) -> None:
        self._trained, self._reorders = trained, reordered
        wanted = compute_dtype(dtype, next(trained.parameters()).device.type)
        if trained.playing:
            (self.model,) = trained.playing
            self.sync()
        elif trained.has_adapter or wanted is torch.float32:
            self.model = trained
        else:
            self.model = deepcopy(trained)
            cast(self.model.lm, wanted)
            self._reorder()
        self.model.eval()

    @torch.no_grad()
    def sync(self) -> None:
        """Copy the trained weights."""
        if self.model is not self._trained:
            for mine, theirs in zip(self.model.parameters(), self._trained.parameters(), strict=True):
                mine.copy_(whole(theirs))
            self._reorder()
        self.model.eval()

    def _reorder(self) -> None:
        if self._reorders and not self._trained.playing:  # sharded training has no memory to spare
            reorder(self.model.lm.get_decoder())  # without the output layer, of which only single rows are read
