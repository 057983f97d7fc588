"""What a user calls: arguments checked, operations run in their order, results handed back."""
