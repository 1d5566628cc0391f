"""Bytes to parsed logs.

How a line of a log becomes part of a `ParsedLog`:

1. `sources` opens a file, an archive or a remote location and yields blocks of bytes.
2. `reading` reads all logs of a session: unchanged logs from the `cache`, other logs
   in several processes (`file_reader`). `run_reader` is its entry point.
3. `log_reader` reads one log. `scan` cuts it into chunks and finds all markers in one
   search: the markers of `dialect_table` and of `recognisers`.
4. `log_collector` receives the markers. It passes a step to its dialect, the end of
   a process to `endings`, and any other text to `facts`.
5. `dialects/NAME` parses the record at a marker (`dialect_reader`) into a
   `StepRecord` (`step_records`), or all records of a log at once, column by column,
   if they have the same layout.
6. `clock` parses the time stamp of the line, and finds pauses before it.
7. `segments` divides the records of all ranks into attempts with one record per step.
8. `facts` and `endings` add to each attempt the facts of the lines around it.

A new dialect needs a module in `dialects` that defines `read_step` (and, if needed,
`merge_records`, `resolve_steps`, `time_steps` or `read_columns`), a row in
`dialect_table`, and a test in `tests/logs`.
"""
