"""The command `llmbench`: `main`, and a module for each command, which declares its options and does what they say."""
