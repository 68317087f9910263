"""Where partitions are computed: one file per engine, and the file name is its id."""
