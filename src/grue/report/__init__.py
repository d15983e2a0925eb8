"""Reports from a run's files: one self-contained HTML page (`html`), rows of its tables (`tables`)."""
