"""Bytes to parsed logs.

How a line of a log becomes part of a `ParsedLog`:

1. `sources` opens a file, an archive or a remote URL and yields blocks of bytes.
2. `reading` reads all logs of a session: unchanged logs from the `cache`, the others
   in several processes (`file_reader`). `run_reader` collects the results.
3. `log_reader` reads one log. `scan` cuts the log into chunks and finds all markers
   of `dialect_table` and `recognisers` in one search.
4. `log_collector` dispatches the markers: a step to its dialect, the end of a process
   to `endings`, any other text to `facts`.
5. `dialects/NAME` reads the record at a marker (`dialect_reader`) as a `StepRecord`
   (`step_records`), or all records of a log by columns if they are alike.
6. `clock` reads the timestamp of the line, and the pause before it.
7. `segments` divides the records of all ranks into attempts, one record per step.
8. `facts` and `endings` add the facts and the ending that other lines print.

To add a dialect, write a module in `dialects` with `read_step` (and, if needed, `merge_records`,
`resolve_steps`, `time_steps` or `read_columns`), a row with its name in `dialect_table`,
and a test in `tests/logs`.
"""
