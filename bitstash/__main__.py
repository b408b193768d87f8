import sys

from torch_bridge.job.cli import main

sys.exit(main(package="bitstash"))
