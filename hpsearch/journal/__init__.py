"""A study's directory and its journal: events, requests and labels on disk, locks, and the study's origin."""
