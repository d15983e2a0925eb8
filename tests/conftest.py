"""Fixtures that several folders of tests share. What they are made of is in `tiny`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

import tiny

# examples are not timed: the machine that runs them may have other things to do
settings.register_profile("grue", deadline=None, max_examples=50)
settings.load_profile("grue")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # begun in the background of a script: the commands that tests start would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with its tokenizer, as a folder."""
    return tiny.save(tmp_path_factory.mktemp("models") / "tiny")
