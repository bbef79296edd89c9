"""`perdure feeds ...`: the commands of feeds, the text of their reports, and the display of running polls."""
