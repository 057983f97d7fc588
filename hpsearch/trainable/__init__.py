"""The side of the user's code: the running trial, its checkpoints, random state, metrics and failures."""
