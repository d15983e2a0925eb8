"""A memory of earlier episodes: notes about them, found again by text, and told to the player with the goal."""
