"""The --llmb-html report: one page from outcome dictionaries, with charts that need no script to be seen."""
