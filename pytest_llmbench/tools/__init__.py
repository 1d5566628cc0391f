"""The commands of `llmbench`, one package each; the packages import nothing from each
other."""
