"""A network for a data set: look at it, search, train the best on all rows, and test it on rows that nothing saw."""
