"""What a user's code holds in its hands: the trial, its checkpoints and random state, its metrics and failures."""
