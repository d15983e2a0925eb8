"""The version of the package, which anything may import."""

__version__ = "0.1.0"
