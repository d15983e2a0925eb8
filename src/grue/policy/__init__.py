"""Policies over a language model: `choose`, `score`, `write`, `think`; they share the ragged KV cache (`engine`)."""
