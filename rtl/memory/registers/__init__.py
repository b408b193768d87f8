"""The register map, and the regions that it describes."""
