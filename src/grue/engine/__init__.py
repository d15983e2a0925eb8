"""The model with one ragged key-value cache for many games: only new tokens are read, in as few passes as possible."""
