"""Which loops live, and everything that people touch: settings, commands, the HTTP port.

`plan` is pure, `sweep` carries it out, `topics` watches what exists, `worker` keeps it all alive, `wiring` builds it.
"""
