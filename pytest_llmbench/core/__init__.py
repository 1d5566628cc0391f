"""What every room may use: records, options, errors, pure formulas. It imports nothing
of the package."""
