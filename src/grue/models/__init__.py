"""Models: loading any Hugging Face causal LM, the embedded base, the value head."""
