"""A study on one page: what was found, how, why other trials were stopped, and how to run it again."""
