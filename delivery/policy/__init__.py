"""What to do, as values: no clock, no chance, no I/O. `now` and random numbers are passed in."""
