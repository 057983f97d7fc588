"""What came of a sweep: studies as they are loaded, tables and exports."""
