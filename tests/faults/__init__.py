"""The fault test: clients of one storage behind a bad network, or on a server that falls over, then judged.

Read `journal` (what is noted of a call), `acting` (the clients), `proxy` (the bad network), `weather` (what
happens to the servers), `storm` (all of it together), then `checking`.
"""
