"""Bytes to parsed logs.

The way of a line from a log to its `ParsedLog`:

1. `sources` opens a file, an archive or a remote place and yields blocks of bytes.
2. `reading` reads the logs of a session: unchanged ones from the `cache`, others in
   several processes (`file_reader`), all of them for `run_reader`.
3. `log_reader` reads one log. `scan` cuts it into chunks and finds all markers in one
   search: those of `dialect_table` and of `recognisers`.
4. `log_collector` takes the markers. A step goes to its dialect, the end of a process
   to `endings`, any other text to `facts`.
5. `dialects/NAME` reads the record at a marker (`dialect_reader`) as a `StepRecord`
   (`step_records`), or all records of a log by columns if they are alike.
6. `clock` reads the stamp of the line, and the pause before it.
7. `segments` divides the records of all ranks into attempts, one print for each step.
8. `facts` and `endings` add to each attempt what the lines around it state.

A new dialect is a module in `dialects` with `read_step` (and those of `join`, `settle`,
`time_steps` and `read_columns` that it needs), a row of its name in `dialect_table`,
and a test in `tests/logs`.
"""
