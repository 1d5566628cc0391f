"""What launchers write next to logs, one module each."""
