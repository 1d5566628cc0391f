"""From planned jobs to ended ones: submit what may run, look after it, tell how it goes."""
