"""BabyAI as a text game, and its rooms mirrored and in other colours."""
