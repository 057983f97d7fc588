"""Results that exist already, read for a search that begins with them."""
