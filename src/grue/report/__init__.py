"""Reports from a run's files: one self-contained HTML page (`html`), tables for a terminal or README (`tables`)."""
