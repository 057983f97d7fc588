"""HTML report of a study: best trials, course of the search, why trials were stopped, and how to run it again."""
