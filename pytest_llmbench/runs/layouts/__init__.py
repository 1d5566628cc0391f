"""Read the outputs of launchers: folders, metadata, scripts and markers."""
