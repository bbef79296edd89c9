"""What `perdure serve` serves to those who have no server of their own yet: tools worth trying.

Read `reports` (work that takes a minute, asks, or fails) and `feeds` (reading feeds as a task). The people
whose feeds are read are made up by `source`, so that nothing here needs a network.
"""

from .reading import Reader, sample_reader
from .server import make_server
from .source import SampleSource

__all__ = ["Reader", "SampleSource", "make_server", "sample_reader"]
