"""Where the tasks of a server live: in an application of its own, within others, beside others."""
