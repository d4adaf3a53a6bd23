"""Many replies into one."""
