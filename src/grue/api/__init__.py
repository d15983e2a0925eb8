"""A chat model behind an OpenAI-compatible endpoint, as a player in evaluations."""
