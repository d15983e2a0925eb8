"""Algorithms as pure functions: arrays in, arrays out."""
