"""A study's directory and its journal: events, requests and labels on disk, locks, and where a study comes from."""
