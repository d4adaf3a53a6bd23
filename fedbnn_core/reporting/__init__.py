"""What people see of runs."""
