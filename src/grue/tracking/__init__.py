"""What a run measures, shown in an experiment tracker: read from the run's files by a separate process."""
