"""Results as text: tables for terminals, CSV and JSON, and the format of numbers and durations."""
