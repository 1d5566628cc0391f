"""Open files, archives, standard input and remote URLs as blocks of bytes,
decompressed."""
