"""The pages of `hpsearch serve`: the studies of a folder, live in a browser."""
