"""What a user calls: arguments checked, turns given, results handed back."""
