"""Training in other people's frameworks, with and without the bridge: ``make frameworks``."""
