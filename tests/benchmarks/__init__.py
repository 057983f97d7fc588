"""How fast hpsearch is, beside something comparable in the same run. `make bench` runs all; nothing is asserted."""
