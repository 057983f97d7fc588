"""Results of sweeps, read from their journals: studies, their trials, and comparisons of studies."""
