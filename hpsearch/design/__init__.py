"""Design a network for a data set: analyze the data, search, train the best network on all rows, and test it."""
