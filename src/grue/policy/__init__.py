"""Policies over a language model: the token trie (`trie`), the ragged KV cache (`engine`), choosing (`choose`)."""
