"""What came of a sweep: tables, exports, and how numbers are put into words."""
