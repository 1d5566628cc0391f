"""The command `llmbench`, made of the commands that the tools bring."""
