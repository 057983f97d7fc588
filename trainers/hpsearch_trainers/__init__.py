"""Trainables that come with hpsearch; they know nothing of search, only of the trial that they are given."""
