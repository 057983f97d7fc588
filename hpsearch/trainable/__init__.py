"""What user code works with: the running trial, its checkpoints, random state, metrics and failures."""
