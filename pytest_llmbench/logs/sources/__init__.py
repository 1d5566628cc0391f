"""Opening what was given: files, compressed or not, archives, standard input and remote
places, as blocks of bytes."""
