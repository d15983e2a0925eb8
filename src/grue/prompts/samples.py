"""Texts by whose ids a changed tokenizer is noticed."""

from __future__ import annotations

COMMON = (
    "You are in the Kitchen. In one part of the room you see a stove, that is closed; there's also 1 oven and 250 g of "
    "flour.\nThrough an open screen door, to the North, you see the backyard (it isn't raining)! \u00c9t\u00e9?"
)
# what normalisers and merges treat differently: ligatures, fractions, full-width and combining characters, odd spaces,
# numbers, capitals, other scripts, and words of many games
STRANGE = (
    "\ufb01ve \u00bd cups, 1/2, x\u00b2; \uff34\uff41\uff4b\uff45 it. e\u0301 \u00eb \u0130 \u00df \u017f \u2126 "
    "\u2026 \u2014 \u201cgo\u201d \u2018in\u2019\tA  tab, two   spaces\u00a0and\u200b none.\n"
    "0 7 42 365 1999 10,000 3.14 -5 50% $20 #3 a_b snake_case camelCase HELLO WORLD I'm don't\n"
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d \u3053\u3093 \u05e9\u05dc\u05d5\u05dd \u0928\u092e \U0001f600\n"
    "Take the brass lantern, unlock the trophy case with a rusty skeleton key and examine the engraving; chop the "
    "yellow bell pepper, fry it, then prepare meal. Inventory: sharp sword, leather pouch, thermometer, aluminum foil, "
    "an electrical circuit. The troll swings his bloody axe and you dodge! Greenhouse, workshop, hallway, corridor, "
    "cupboard, fridge, dresser, countertop; pick up the red ball, go to the grey door, focus on the seedling."
)
