"""The subcommands of `llmbench`: each module declares its options and does what they say."""
