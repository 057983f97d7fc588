"""Results as text: tables for terminals, CSV and JSON, and how numbers and durations are worded."""
