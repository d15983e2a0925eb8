"""What a run leaves on disk: JSON, JSONL and safetensors, never pickle. Import its modules; this one needs no torch."""
