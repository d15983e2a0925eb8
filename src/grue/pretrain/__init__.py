"""How the embedded base is made: transcripts -> tokenizer -> a small decoder trained from scratch."""
