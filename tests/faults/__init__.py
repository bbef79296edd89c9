"""The fault test: clients use one storage while its server or the network fails, then the result is checked.

Read `journal` (the record of each call), `clients`, `proxy` (faults of the network), `disturbances` (all
faults), `scenario`, then `checks`.
"""
