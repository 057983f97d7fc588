"""`hpsearch check`: run one trial of a sweep several times, and compare the results."""
