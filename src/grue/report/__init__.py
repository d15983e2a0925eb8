"""Reports from the files of a run: one self-contained HTML page (`html`), tables for a terminal or README (`tables`)."""
