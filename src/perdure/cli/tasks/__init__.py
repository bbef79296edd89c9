"""`perdure tasks ...`: the tasks of all owners, for the operators of servers."""
