"""HTML report of a study: its best trials, the course of the search, why trials were stopped, and how to run it again."""
