"""What launchers write: folders, metadata, scripts, marks."""
