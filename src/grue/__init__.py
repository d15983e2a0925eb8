"""grue: train language-model policies for text games, and see how it is done."""

__version__ = "0.1.0"
