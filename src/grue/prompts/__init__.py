"""Prompts: text for people (`transcript`), ids for models (`tokens`)."""
