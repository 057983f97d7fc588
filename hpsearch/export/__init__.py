"""A study written for other tools, or its best trial for use."""
