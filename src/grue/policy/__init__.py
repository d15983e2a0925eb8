"""Policies over a language model: `aligned`, `choose`, `score`, `write`, `think`."""
