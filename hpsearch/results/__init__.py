"""What came of a sweep, read from its journal: studies, their trials, and studies beside each other."""
